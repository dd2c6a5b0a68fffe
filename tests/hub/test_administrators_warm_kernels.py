"""Kernelspecs that an administrator installs for all users: each user's server has warm kernels made as it starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from user_servers import ANA, BOB, UserServer, gpu_hub

PRELUDE = "import os\nuid, weights = os.getuid(), list(range(1000))\n"
KERNEL = {
    "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Course: model loaded",
    "language": "python",
    "metadata": {"affinode": {"warm": {"count": 1, "prelude": "prelude.py"}}},
}
FORM = '<select name="size"><option>small</option></select>'


@pytest.fixture
def prefix():
    """An environment's folder that all users can read, with the kernelspecs of a folder installed into it."""
    folder = Path(tempfile.mkdtemp(prefix="aff-", dir="/tmp"))
    folder.chmod(0o755)
    written = folder / "kernelspecs" / "course-model"
    written.mkdir(parents=True)
    (written / "kernel.json").write_text(json.dumps(KERNEL))
    (written / "prelude.py").write_text(PRELUDE)
    adding = [
        sys.executable,
        "-m",
        "jupyter_affinode.cli",
        "warm",
        "add",
        "--from",
        str(folder / "kernelspecs"),
    ]
    added = subprocess.run([*adding, "--prefix", str(folder)], capture_output=True, text=True)
    assert added.returncode == 0 and "Installed course-model" in added.stdout, added
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_each_users_server_makes_their_own_of_an_administrators_kernelspec(native, prefix, wait_until):
    spawner = {"warm_kernelspecs": [str(prefix / "kernelspecs")], "options_form": FORM}
    path = {"JUPYTER_PATH": str(prefix / "share" / "jupyter")}
    with gpu_hub("6", {"ana": ANA, "bob": BOB}, environment=path, spawner=spawner) as hub:
        page = hub.log_in("ana").get(f"{hub.url}/hub/spawn", timeout=60).text
        assert "Kernels kept ready: Course: model loaded." in page and FORM in page
        for taken, (user, uid) in enumerate((("ana", ANA), ("bob", BOB)), 1):
            hub.spawn(user, size="small")
            hub.follow(user).whole()
            server = UserServer(hub, user)

            def ready(server=server):
                pools = server.affinode()[1]["warm"]
                return [each for each in pools if each["name"] == "course-model" and each["ready"]]

            wait_until(ready, message=hub.log)
            kernel = server.start_kernel("course-model")
            assert kernel.run("print(uid, len(weights))").text.split() == [str(uid), "1000"]
            assert server.log().count("was ready: it is a warm one") == taken
