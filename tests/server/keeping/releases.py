"""Two releases of the package, one after the other in the folder from which a machine's programs have it."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest
from hibernating import prepare
from keepers import keepers, the_keeper
from live_machine import Machine
from live_server import JupyterServer
from waiting import wait_until

import jupyter_affinode

ROOT = Path(__file__).resolve().parents[3]
# The release before this one: the last commit before requests to the keeper had ids.
EARLIER = "dd8a1048b42c8590ed4609b5c0c128d568138728"
PROTOCOL = "shim/src/protocol.h"
NOT_SOURCES = shutil.ignore_patterns("labextension", "lib", "__pycache__")


def earlier_sources(folder: Path) -> Path:
    """Put the package of the release before this one into a folder; skip where the clone has no such commit."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", EARLIER, "jupyter_affinode", PROTOCOL], capture_output=True
    )
    if archive.returncode:
        why = archive.stderr.decode(errors="replace").strip()
        pytest.skip(f"the release before this one ({EARLIER[:8]}) is not in this clone: {why}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder, filter="data")
    assert _versions(folder / PROTOCOL) == _versions(ROOT / PROTOCOL), (
        "the earlier release needs libraries of its own: it and this one do not speak the same protocol with shims"
    )
    return folder / "jupyter_affinode"


def _versions(protocol: Path) -> list[str]:
    """The lines that say which versions of the protocol and of the page these are."""
    found = [line for line in protocol.read_text().splitlines() if "VERSION" in line]
    assert found
    return found


class Upgrade:
    """A machine on which the earlier release is installed first, and then this one, as pip does it."""

    def __init__(self, machine: Machine, criu: str, earlier: Path):
        """`earlier`: the earlier release's package."""
        self.machine = machine
        self.folder = machine.folder / "site" / "jupyter_affinode"
        self.own = Path(machine.environment["AFFINODE_FOLDER"])
        machine.environment["PYTHONPATH"] = str(self.folder.parent)
        machine.simulate("4GiB")
        self._put(earlier)
        machine.start_controller("--settle=0")
        self.server = prepare(JupyterServer(machine), criu)

    def _put(self, package: Path) -> None:
        """Replace the package's files. Files that are open stay what they were."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(package, self.folder, ignore=NOT_SOURCES)
        # Kernels have the shim in memory: pip puts the same one in its place, if it was built the same.
        (self.folder / "lib").symlink_to(Path(jupyter_affinode.__file__).parent / "lib")

    def install(self) -> None:
        """Replace the earlier release by this one."""
        self._put(Path(jupyter_affinode.__file__).parent)

    def renew_keeper(self) -> int:
        """Kill the keeper, and wait until another one runs and no kernel of a server is left without it; its pid."""
        killed = the_keeper(self.machine)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: keepers(self.machine) not in ([], [killed]))
        wait_until(lambda: self.command("kept").strip() in ("[]", ""), message=self.keeper_log)
        return the_keeper(self.machine)

    def end_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server."""
        self.server.process.send_signal(how)
        self.server.process.wait(timeout=120)

    def next_server(self, *arguments: str) -> None:
        """Start the next server, where the one before was."""
        self.server.start(*arguments, port=self.server.port)

    def command(self, *arguments: str) -> str:
        """Run `jupyter affinode …`, and return what it prints as JSON."""
        done = self.machine.affinode(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr + self.keeper_log()
        return done.stdout

    def record(self, kernel_id: str) -> Path:
        """Return the file that the keeper has of a kernel whose process runs."""
        return self.own / "kept" / f"{kernel_id}.json"

    def keeper_log(self) -> str:
        """What the keepers wrote."""
        return (self.own / "keeper.log").read_text(errors="replace")

    def state(self) -> str:
        """Return what helps to understand why something does not come."""
        images = [
            str(path.relative_to(self.machine.folder)) for path in self.machine.folder.glob("images/*/*")
        ]
        told = [*map(str, self.machine.kernels().values()), *images, self.server.log(), self.keeper_log()]
        return "\n".join(told)

    def path_of(self, kernel_id: str) -> str:
        """Return the notebook of a kernel, by the server's sessions."""
        sessions = self.server.request("GET", "/api/sessions")[1]
        return next(each["path"] for each in sessions if each["kernel"]["id"] == kernel_id)
