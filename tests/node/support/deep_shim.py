"""A fake shim whose process may leave the GPU with its context."""

from __future__ import annotations

from fake_shim import CONTEXT_DEPTH, MIB, PARK, FakeShim

CONTEXT_FLAG, CONTEXT_MOVE = 16, 2  # of HELLO; of PARK


class DeepShim(FakeShim):
    """Goes as deep as it is told; or stays at memory depth and says why."""

    stays = ""
    context_bytes = 600 * MIB

    def _moved(self, command):
        super()._moved(command)
        if command.kind == PARK and command.argument & CONTEXT_MOVE and not self.stays:
            self.page.host[5] = CONTEXT_DEPTH
        self.page.context_bytes = self.context_bytes if self.page.host[5] == CONTEXT_DEPTH else 0

    def _words(self, command):
        return self.stays if command.kind == PARK else ""
