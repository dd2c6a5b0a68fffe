"""A process with a fake shim that says HELLO again whenever its link ends; started by tests."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fake_shim import GPU, MIB, FakePage, FakeShim

page = FakePage()
page.memory[GPU][0] = 100 * MIB
page.write()
while True:
    try:
        shim = FakeShim(Path(sys.argv[1]), sys.argv[2], page=page)
    except OSError:
        time.sleep(0.05)
        continue
    while not shim.heard.ended:
        time.sleep(0.05)
