"""Time a new user's path, as seen in Chromium: clone, `make demo`, the page, the first cell, the first park.

`python tests/docs/newcomer.py [REPOSITORY]` takes some minutes, uses the network for packages, and prints the seconds
of each step. JupyterLab opens the browser itself, as for a user.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from clean_place import REPOSITORY, Steps, plain_environment, report, running, temporary_folder, wait_until
from live_browser import chromium
from playwright.sync_api import Page, expect

LIMIT_MS = 600_000
# What JupyterLab starts as the user's browser: it notes the address, and Chromium opens that under our eyes.
BROWSER = """#!/bin/sh
printf '%s\\n' "$1" > "$HOME/opened.new" && mv "$HOME/opened.new" "$HOME/opened"
"""


def newcomer(repository: str, keep: bool) -> float:
    """Go the whole way once; return how many seconds it took."""
    with temporary_folder(keep) as folder, chromium() as browser:
        home, clone, log = folder / "home", folder / "jupyter-affinode", folder / "log"
        environment = plain_environment(home)
        command = home / "browser"
        command.write_text(BROWSER)
        command.chmod(0o755)
        environment["BROWSER"] = f"{command} %s"
        steps = Steps()
        subprocess.run(
            ["git", "clone", "--quiet", repository, clone], env=environment, cwd=folder, check=True
        )
        steps.done("git clone")
        with running(["make", "demo"], log, environment, clone) as demo:
            wait_until((clone / ".venv" / ".demo").exists, "installation", demo, log)
            steps.done(f"make demo: built and installed ({children_cpu_s(demo.pid):.0f} s of CPU time)")
            opened = home / "opened"
            wait_until(opened.exists, "browser opened", demo, log)
            steps.done("JupyterLab has opened the browser")
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(LIMIT_MS)
            page.goto(opened.read_text().strip())
            follow(page, steps)
        return steps.sum()


def follow(page: Page, steps: Steps) -> None:
    """Do what the notebook says up to the first park, and once more use the GPU."""
    panel, cells = page.locator("#jp-affinode-panel"), page.locator(".jp-Notebook .jp-CodeCell")
    expect(panel).to_contain_text("demo.ipynb", timeout=LIMIT_MS)
    expect(cells).to_have_count(5, timeout=LIMIT_MS)
    expect(page.locator(".Toastify__toast, .jp-Dialog")).to_have_count(0)
    steps.done("the page shows the notebook and the panel, and asks nothing")
    run(page, 0)
    expect(cells.nth(0)).to_contain_text("On the GPU: 256 MiB", timeout=LIMIT_MS)
    steps.done("the first cell has put 256 MiB on the GPU")
    expect(panel).to_contain_text("GPU freed", timeout=LIMIT_MS)
    steps.done("the panel says GPU freed (10 s of them idle)")
    run(page, 2)
    expect(cells.nth(2)).to_contain_text("intact", timeout=LIMIT_MS)
    steps.done("the third cell has got it back, intact")


def children_cpu_s(pid: int) -> float:
    """Return the CPU time of a process's children that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def run(page: Page, number: int) -> None:
    """Run a cell as a user does."""
    page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Shift+Enter")


def main() -> int:
    """Return 0 if each step came to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", default=str(REPOSITORY))
    parser.add_argument("--keep", action="store_true", help="leave the folder there")
    arguments = parser.parse_args()
    return report(lambda: newcomer(arguments.repository, arguments.keep))


if __name__ == "__main__":
    sys.exit(main())
