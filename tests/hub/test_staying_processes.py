"""Which processes of a server's unit stay when it ends, without systemd itself."""

from __future__ import annotations

import subprocess
import sys

from hub_spawner.systemd import those_that_stay

STARTS_ANOTHER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], env={})
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


def test_what_is_marked_stays_with_all_that_it_started():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", STARTS_ANOTHER]
    marked, other = (
        subprocess.Popen(command, env=environ, **pipes) for environ in ({"AFFINODE_STAYS": "1"}, {})
    )
    with marked, other:
        children = [int(each.stdout.readline()) for each in (marked, other)]
        found = those_that_stay([marked.pid, other.pid, *children, 2**22 - 1])
        assert found == sorted([marked.pid, children[0]])
