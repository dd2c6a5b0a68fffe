"""What a prelude's libraries keep of `sys.stdout` and `sys.stderr` is the kernel's own stream from its end on."""

from __future__ import annotations

import io
import sys

from jupyter_affinode.kernel import warming

KEEPS = """
import functools, logging, sys
said = functools.partial(print, file=sys.stdout)
log = logging.getLogger("of a prelude")
log.addHandler(logging.StreamHandler())
log.addHandler(logging.StreamHandler(sys.stdout))
named = sys.stderr
print("shown to no one"), said("shown to no one"), log.warning("shown to no one")
"""


def test_what_a_prelude_keeps_of_its_streams_writes_to_the_kernels_own_afterwards(tmp_path, monkeypatch):
    prelude, namespace = tmp_path / "prelude.py", {}
    prelude.write_text(KEEPS)
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    error, output = warming.run_prelude(str(prelude), None, namespace)
    assert (error, output) == ("", "shown to no one\n" * 4)
    assert (out.getvalue(), err.getvalue()) == ("", "")
    namespace["said"]("said")
    namespace["log"].warning("logged")
    namespace["named"].writelines(["written ", "by name"])
    namespace["named"].close()
    namespace["named"].flush()
    assert (out.getvalue(), err.getvalue()) == ("said\nlogged\n", "logged\nwritten by name")
    assert namespace["named"].getvalue() == err.getvalue(), "all else is the kernel's own"
    assert not namespace["named"].isatty()


def test_what_a_prelude_prints_is_kept_within_bounds(tmp_path):
    prelude = tmp_path / "prelude.py"
    prelude.write_text("for number in range(100_000):\n    print(number)\n1 / 0")
    error, output = warming.run_prelude(str(prelude), None, {})
    assert "ZeroDivisionError" in error
    assert output.endswith("99998\n99999\n")
    assert len(output) <= warming.OUTPUT_MAX
