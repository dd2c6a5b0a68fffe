"""A fake shim whose process may leave the GPU with its context."""

from __future__ import annotations

from fake_shim import GPU, MIB, OK, PARKED, FakeShim, reply

CONTEXT_FLAG, CONTEXT_MOVE = 16, 2  # of HELLO; of PARK


class DeepShim(FakeShim):
    """Goes as deep as it is told; or stays at memory depth and says why."""

    stays = ""
    context_bytes = 600 * MIB

    def _move(self, command, status, *, to):
        deep = to == PARKED and bool(command.argument & CONTEXT_MOVE) and not self.stays
        self.page.host[5] = 0 if to != PARKED else 2 if deep else 1
        self.page.context_bytes = self.context_bytes if deep else 0
        if to == PARKED and self.stays:
            resident_bytes, _, fixed = self.page.memory[GPU]
            self.page.memory[GPU] = [0, resident_bytes, fixed]
            self.become(to)
            self.send(reply(command.kind, command.epoch, OK, resident_bytes, self.stays))
            return
        super()._move(command, status, to=to)
