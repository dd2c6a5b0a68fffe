"""A warm kernel that was taken is as one that was just started, in each of the respects that a cell can see."""

from __future__ import annotations

import json

import pytest
from live_server import JupyterServer
from warm_stage import WarmStage

# What a prelude leaves behind that a notebook must not see, and what it may see.
PRELUDE = """
import os, random, sys, warnings
import numpy
print("said by the prelude")
print("said by the prelude", file=sys.stderr)
warnings.warn("shown in the prelude")
random.seed(1), numpy.random.seed(1)
os.chdir("/")
os.umask(0)
get_ipython().run_cell("1 + 1", store_history=True)
prepared = 42
"""
# By respect, an expression of what a cell sees, without what differs between any two kernels (its id and its pid).
RESPECTS = {
    "pid is the server's, and the process's own": "os.getpid() == int(os.readlink('/proc/self'))",
    "process group and session": "(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid())",
    "working directory": "os.getcwd()",
    "environment": "{name: own(value) for name, value in os.environ.items()}",
    "argv": "[own(word) for word in sys.argv]",
    "sys.path": "sys.path",
    "executable, prefix and flags": "(sys.executable, sys.prefix, str(sys.flags))",
    "execution count": "get_ipython().execution_count",
    "history of this session": "[entry[2] for entry in get_ipython().history_manager.get_range()][:-1]",
    "In, but for this cell": "get_ipython().user_ns['In'][:-1]",
    "Out": "dict(get_ipython().user_ns['Out'])",
    "last results and inputs": "[get_ipython().user_ns[name] for name in ('_', '__', '___', '_i', '_ii', '_iii')]",
    "folder history": "[str(each) for each in get_ipython().user_ns['_dh']]",
    "session name": "get_ipython().user_ns.get('__session__')",
    "warnings' filters": "[str(each) for each in warnings.filters]",
    "warnings that were shown": "'again' in shown(lambda: warnings.warn_explicit('again', UserWarning, 'x', 1))",
    "logging": "[(type(each).__name__, each.level) for each in logging.root.handlers] + [logging.root.level]",
    "signal handlers": "[str(signal.getsignal(number)).split(' at ')[0] for number in sorted(signal.valid_signals())]",
    "event loop": "(type(asyncio.get_running_loop()).__name__, threading.current_thread() is threading.main_thread())",
    "threads": "sorted({each.name for each in threading.enumerate()} - {'affinode-parent'} - poller())",
    "matplotlib's backend": "os.environ.get('MPLBACKEND')",
    "standard streams": "[type(each).__name__ for each in (sys.stdin, sys.stdout, sys.stderr)]",
    "display hook and exception hook": "(type(sys.displayhook).__name__, sys.excepthook.__qualname__)",
    "umask": "mask()",
    "limits": "[resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT')]",
    "recursion limit, switch interval": "(sys.getrecursionlimit(), sys.getswitchinterval())",
    "garbage collection": "(gc.isenabled(), gc.get_threshold())",
    "fault handler, tracing": "(faulthandler.is_enabled(), sys.gettrace(), sys.getprofile())",
    "last exception": "hasattr(sys, 'last_value')",
    "time zone, locale": "(time.tzname, locale.setlocale(locale.LC_ALL))",
    "connection file": "own(ipykernel.get_connection_file())",
    "ports": "sorted(json.loads(ipykernel.get_connection_info())) ",
    "comms": "sorted(get_ipython().kernel.comm_manager.targets)",
    "names": "sorted(name for name in get_ipython().user_ns if name not in BEFORE)",
}
LOOK = """
import numpy  # as the prelude does: a package may change filters of warnings
import asyncio, faulthandler, gc, ipykernel, json, locale, logging, os, re, resource, signal, sys, threading, time
import warnings, contextlib, io

def own(text):
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)

def mask():
    found = os.umask(0)
    os.umask(found)
    return found

def shown(work):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        work()
    return said.getvalue()

def poller():
    return {each.name for each in threading.enumerate() if "Poller" in type(each).__name__}

BEFORE = {"asyncio", "contextlib", "faulthandler", "gc", "io", "ipykernel", "json", "locale", "logging", "mask", "os",
    "own", "poller", "re", "resource", "shown", "signal", "sys", "threading", "time", "warnings", "BEFORE", "SEEN",
    "random", "numpy", "prepared"}
SEEN = {}
"""
ASK = f"for respect, expression in {RESPECTS!r}.items():\n    SEEN[respect] = eval(expression)\nprint(json.dumps(SEEN))"


def seen(server: JupyterServer, name: str) -> dict[str, object]:
    """What a cell of a new notebook's kernel sees, by respect."""
    kernel = server.start_kernel(name, path=f"{name}.ipynb")
    first = kernel.run(LOOK + ASK)
    assert (first.status, first.stderr) == ("ok", ""), first
    looked = json.loads(first.text)
    assert kernel.run("prepared" if name == "warm" else "42").text == "42"
    kernel.shutdown()
    server.kernels.remove(kernel)
    return looked


@pytest.mark.long
@pytest.mark.parametrize("keeps", ["never", "all"])
def test_a_taken_kernel_is_as_a_new_one_in_every_respect(keeping_machine, server, keeps):
    stage = WarmStage(keeping_machine)
    stage.write("warm", PRELUDE)
    server.start(f"--AffinodeExtension.keep_kernels={keeps}")
    stage.until("warm", "ready")
    warm, plain = seen(server, "warm"), seen(server, "python3")
    assert "was ready: it is a warm one" in server.log()
    warm["environment"].pop("JPY_SESSION_NAME"), plain["environment"].pop("JPY_SESSION_NAME")
    assert warm.pop("session name").endswith("warm.ipynb")
    assert (plain.pop("session name") or "python3.ipynb").endswith(
        "python3.ipynb"
    )  # an old ipykernel sets none
    differing = {
        respect: (warm[respect], plain[respect]) for respect in plain if warm[respect] != plain[respect]
    }
    assert differing == {}
    assert len(plain) >= 20
