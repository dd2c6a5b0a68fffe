"""Time what Binder does with `binder/`: repo2docker's steps without its container, then the notebook in Chromium.

`python tests/docs/binder.py [REPOSITORY]` takes some minutes and uses the network for packages. repo2docker installs
`apt.txt` and `requirements.txt`, runs `postBuild` in the clone, and starts a server with `start`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from clean_place import (
    REPOSITORY,
    Failed,
    Steps,
    plain_environment,
    report,
    running,
    temporary_folder,
    wait_until,
)
from live_browser import chromium
from newcomer import LIMIT_MS, follow

SERVES = re.compile(r"http://127\.0\.0\.1:[1-9]\d*/lab")
TOKEN = "seen"


def binder(repository: str, keep: bool) -> float:
    """Build and start the repository as Binder does, once; return how many seconds it took."""
    with temporary_folder(keep) as folder, chromium() as browser:
        clone, venv, log = folder / "repository", folder / "environment", folder / "log"
        environment = plain_environment(folder / "home")
        environment |= {"PATH": f"{venv}/bin:{environment['PATH']}", "REPO_DIR": str(clone)}
        steps = Steps()

        def build(*command: str | Path) -> None:
            with log.open("ab") as written:
                if subprocess.run(
                    command, env=environment, cwd=clone, stdout=written, stderr=subprocess.STDOUT
                ).returncode:
                    raise Failed(f"{command}\n{log.read_text(errors='replace')[-4000:]}")
            steps.done(" ".join(str(each).removeprefix(f"{clone}/") for each in command))

        subprocess.run(["git", "clone", "--quiet", repository, clone], env=environment, check=True)
        for package in (clone / "binder" / "apt.txt").read_text().split():
            build("dpkg-query", "--status", package)
        subprocess.run(["python3", "-m", "venv", venv], env=environment, check=True)
        build("pip", "install", "--no-cache-dir", "--quiet", "--requirement", "binder/requirements.txt")
        build(clone / "binder" / "postBuild")
        server = [
            "jupyter",
            "lab",
            "--no-browser",
            "--port=0",
            "--allow-root",
            f"--IdentityProvider.token={TOKEN}",
        ]
        with running([clone / "binder" / "start", *server], log, environment, clone) as started:
            found = wait_until(lambda: SERVES.search(log.read_text(errors="replace")), "server", started, log)
            steps.done("binder/start: JupyterLab serves")
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(LIMIT_MS)
            page.goto(f"{found[0]}?token={TOKEN}")
            follow(page, steps)
        return steps.sum()


def main() -> int:
    """Return 0 if each step came to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", default=str(REPOSITORY))
    parser.add_argument("--keep", action="store_true", help="leave the folder there")
    arguments = parser.parse_args()
    return report(lambda: binder(arguments.repository, arguments.keep))


if __name__ == "__main__":
    sys.exit(main())
