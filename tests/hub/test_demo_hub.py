"""The demo's Hub tells its story to the end, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from live_hub import NAVIGATE, proxy_command, xsrf

DEMO = Path(__file__).resolve().parents[2] / "binder" / "demo_hub.py"


def processes_of(folder: Path) -> Iterator[str]:
    """Yield the command lines of the processes whose environment names a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                yield (process / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue  # it has ended


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO), *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=DEMO.parent,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_that_is_ended_by_a_signal_leaves_no_process_and_no_folder(
    native, wait_until, tmp_path, number
):
    proxy_command()
    demo = start(tmp_path, "--headless")
    wait_until(lambda: [*tmp_path.glob("affinode-demo-*/hub.sqlite")], timeout=120)
    assert any("jupyterhub" in command for command in processes_of(tmp_path))
    demo.send_signal(number)
    said = demo.communicate(timeout=120)[0]
    wait_until(lambda: not [*processes_of(tmp_path)], message=lambda: (said, [*processes_of(tmp_path)]))
    assert not [*tmp_path.glob("affinode-demo-*")]


@pytest.mark.long
def test_the_demos_hub_shares_the_gpu_between_two_users_and_has_an_administrators_page(
    native, wait_until, tmp_path
):
    proxy_command()
    demo = start(tmp_path)
    said = ""
    while "The administrators' page" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    assert "1 idle kernel was freed" in said and "nothing was lost" in said
    words = said.split()
    password, url = words[words.index("password") + 1].rstrip(":"), words[words.index("(Ctrl-C") - 1]
    browser = requests.Session()
    browser.headers["Connection"] = "close"
    token = xsrf(browser.get(f"{url}hub/login", headers=NAVIGATE, timeout=60))
    form = {"username": "admin", "password": password, "_xsrf": token}
    browser.post(f"{url}hub/login", data=form, headers=NAVIGATE, timeout=60)
    page = browser.get(f"{url}services/affinode/", headers=NAVIGATE, timeout=60)
    assert page.status_code == 200 and "this machine" in page.text, page.text
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=120)
    wait_until(lambda: not [*processes_of(tmp_path)], message=lambda: [*processes_of(tmp_path)])
