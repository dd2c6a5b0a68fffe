"""The text of `MARK`, wherever a user, a server or a shim can say something, and as why each command failed."""

from __future__ import annotations

import json
import struct

from attacking import API, FOLDER, goes_on, under_way
from fake_shim import FAILED, MIB, PARKED, REPLY, Command, FakeShim, message
from live_machine import UnixConnection

MARK = "forged"
MOVES = (1, 2, 11, 12, 15, 16, 17)  # of `enum affinode_command_kind`: those that are answered by a REPLY


class Talking(FakeShim):
    """A process that can do nothing, and says why."""

    def _carry_out(self, command: Command) -> None:
        if command.kind in MOVES:
            body = struct.pack("=IiQQ192s", command.kind, FAILED, 0, 0, MARK.encode())
            self.send(message(REPLY, body, epoch=command.epoch))


def main() -> None:
    """Say it."""
    shims = [
        Talking(FOLDER, f"{MARK}-on", resident=50 * MIB),
        *(Talking(FOLDER, f"{MARK}-off-{number}", parked=50 * MIB, state=PARKED) for number in range(2)),
    ]
    api = UnixConnection(API, 20)

    def ask(method: str, path: str, body: object) -> int:
        """Ask about the first kernel; the answer's status."""
        api.request(method, f"/api/v1/kernels/{MARK}-on{path}", json.dumps(body))
        answer = api.getresponse()
        answer.read()
        return answer.status

    texts = dict.fromkeys(("name", "path", "language", "server"), MARK)
    said = [
        ask("PUT", "", {**texts, "hibernate_after_s": 1.0}),
        ask("POST", "/cell", {"open": True, "cell_id": MARK}),
        ask("POST", "/hibernate-refused", {"text": MARK}),
        ask("POST", "/park", {"wait": True}),
        ask("POST", "/shutdown", {}),
    ]
    under_way(statuses=said)
    while goes_on(0.1):
        pass
    for shim in shims:
        shim.close()


if __name__ == "__main__":
    main()
