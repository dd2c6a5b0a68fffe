"""Hand a warm kernel to a notebook, inside a kernel of any environment: standard library only, Python 3.8 or later.

The program that takes the kernel sends one message, `affinode_take`, which is signed as all of a kernel's messages are.
From then on the kernel listens where that program's connection file says, with its key, and is as one that was just
started: folder, environment, limits, history, random numbers. Loaded by warming.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import sys
import threading
import time
import traceback
import warnings

TAKE, TAKEN = "affinode_take", "affinode_take_reply"
CHANNELS = ("shell", "control", "stdin", "iopub")
THREAD_S = 10.0  # until another of the kernel's threads has done its part
UNBIND_AFTER_S = 2.0  # so that the answer goes out by the way that the question came
# The start-up has dealt with these: they are not among what a prelude changed.
NOT_THE_PRELUDES = ("PYTHONSTARTUP", "JPY_SESSION_NAME")
# Nor have these anything to do with it: no file says what they were (keeping/warm_spec.py).
OF_ONE_SERVER = ("JUPYTERHUB_", "JPY_", "AFFINODE_")
SECRETS = ("JUPYTER_TOKEN", "CONFIGPROXY_AUTH_TOKEN")
INPUTS = ("_i", "_ii", "_iii", "_i00")  # of IPython's history, the last also in its own words
NUMBERED = re.compile(r"_i?\d+$")
START_ONLY = ("AFFINODE_WARM", "AFFINODE_PRELUDE", "AFFINODE_PRELUDE_FAILED", "AFFINODE_STARTUP_CHAIN")


def wait_to_be_taken(shell, load_beside):  # type: ignore[no-untyped-def]
    """Serve the one message that takes this kernel. Raises AttributeError if this is no kernel of ipykernel's."""
    kernel = shell.kernel
    kernel.shell_handlers[TAKE] = Taking(shell, kernel, load_beside).serve


class Taking:
    """Takes this kernel out of its pool."""

    def __init__(self, shell, kernel, load_beside):  # type: ignore[no-untyped-def]
        self._shell, self._kernel, self._load_beside = shell, kernel, load_beside
        self._app = kernel.parent

    def serve(self, stream, ident, parent):  # type: ignore[no-untyped-def]
        """Take the message, once; the answer is signed with the key of before."""
        session = self._kernel.session
        before = type(session)(
            key=session.key, signature_scheme=session.signature_scheme, session=session.session
        )
        self._kernel.shell_handlers.pop(TAKE, None)
        try:
            self._take(parent["content"])
            reply = {"status": "ok", "pid": os.getpid()}
        except Exception:
            reply = {"status": "error", "error": traceback.format_exc()}
        before.send(stream, TAKEN, reply, parent, ident)

    def _take(self, told):  # type: ignore[no-untyped-def]
        self._change_surroundings(told)
        self._change_environment(told["environ"], told["launched_with"])
        self._forget_session()
        seed_anew(self._shell.user_ns)
        self._belong_to_other_kernel()
        staying = getattr(self._kernel, "affinode_staying", None)
        if staying is not None:
            staying.settle()
        if told["ends_with"]:
            end_with(told["ends_with"])
        self._listen_at(told["connection"], told["connection_file"])

    # ---- what a new process gets from the one that starts it

    def _change_surroundings(self, told):  # type: ignore[no-untyped-def]
        import resource

        before = os.getcwd()
        os.chdir(told["cwd"])
        # Older releases of ipykernel leave the folder of the start in front, where newer ones have "".
        sys.path[:] = [told["cwd"] if folder == before else folder for folder in sys.path]
        os.umask(told["umask"])
        for name, soft in told["limits"].items():
            which = getattr(resource, name, None)
            if which is not None:
                hard = resource.getrlimit(which)[1]
                is_more = hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard)
                resource.setrlimit(which, (hard if is_more else soft, hard))
        old = self._app.connection_file
        sys.argv[:] = [word.replace(old, told["connection_file"]) for word in sys.argv]

    def _change_environment(self, environ, launched_with):  # type: ignore[no-untyped-def]
        """Take another environment, but for what changed since the start: by its command and its prelude."""
        changed = {
            name: value
            for name, value in os.environ.items()
            if launched_with.get(name) != value
            and name not in (*NOT_THE_PRELUDES, *SECRETS)
            and not name.startswith(OF_ONE_SERVER)
        }
        removed = launched_with.keys() - os.environ.keys() - set(NOT_THE_PRELUDES)
        fresh = {**environ, **changed}
        chained = fresh.get("AFFINODE_STARTUP_CHAIN")
        for name in (*removed, *START_ONLY, "PYTHONSTARTUP"):
            fresh.pop(name, None)
        if chained:
            fresh["PYTHONSTARTUP"] = chained
        for name in os.environ.keys() - fresh.keys():
            del os.environ[name]
        os.environ.update(fresh)
        time.tzset()
        session = fresh.get("JPY_SESSION_NAME")
        self._shell.user_ns.pop("__session__", None)
        if session:
            self._shell.user_ns["__session__"] = session

    # ---- what a new kernel has not had yet

    def _forget_session(self):  # type: ignore[no-untyped-def]
        """Begin a session of IPython's anew: no history, no outputs, and warnings that come again."""
        shell = self._shell
        history = shell.history_manager
        history.reset(new_session=True)
        shell.execution_count = 1
        for name in INPUTS:
            if hasattr(history, name):
                setattr(history, name, "")
        for name in (*INPUTS[:-1], "_", "__", "___"):
            shell.user_ns[name] = ""
        for name in [name for name in shell.user_ns if NUMBERED.match(name)]:
            del shell.user_ns[name]
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        getattr(warnings, "onceregistry", {}).clear()
        with (
            warnings.catch_warnings()
        ):  # which has each warning come again, also one that came in the prelude
            pass

    def _belong_to_other_kernel(self):  # type: ignore[no-untyped-def]
        """Have the controller know this process by its new kernel, and hold output when that says so."""
        library = os.environ.get("AFFINODE_LIBRARY")
        if library and os.environ.get("AFFINODE_DISABLE") != "1":
            import ctypes

            mode = os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0)
            taken = ctypes.CDLL(library, mode=mode).affinode_taken
            taken.restype = None
            taken()
        file = os.environ.get("AFFINODE_HIBERNATES", "")
        hold = getattr(self._kernel, "affinode_output_hold", None)
        if hold is not None:
            hold.file = file
        elif file:
            self._load_beside("output_hold").hold_output(self._kernel, file)

    # ---- where it listens

    def _listen_at(self, connection, connection_file):  # type: ignore[no-untyped-def]
        """Listen at other addresses, each socket by the thread that it belongs to, and with another key."""
        app, kernel = self._app, self._kernel
        kernel.session.key = connection["key"].encode()
        transport, ip = connection["transport"], connection["ip"]
        ports = {channel: connection[f"{channel}_port"] for channel in (*CHANNELS, "hb")}
        separator = ":" if transport == "tcp" else "-"
        addresses = {name: f"{transport}://{ip}{separator}{port}" for name, port in ports.items()}
        old = [self._rebind(channel, addresses[channel]) for channel in CHANNELS]
        self._beat_at((transport, ip, ports["hb"]))
        app.connection_file, app.transport, app.ip = connection_file, transport, ip
        for name, port in ports.items():
            setattr(app, f"{name}_port", port)
        kernel._recorded_ports = {f"{name}_port": port for name, port in ports.items()}
        app._ports = dict(ports)
        kernel.io_loop.call_later(UNBIND_AFTER_S, lambda: [unbind() for unbind in old])

    def _rebind(self, channel, address):  # type: ignore[no-untyped-def]
        """Have a channel listen at another address too; return what ends listening at the old one."""
        import zmq

        socket = (
            self._app.iopub_thread.socket if channel == "iopub" else getattr(self._app, f"{channel}_socket")
        )
        run = self._runner(channel)
        debug = self._app.debug_shell_socket if channel == "shell" else None

        def bind():  # type: ignore[no-untyped-def]
            before = socket.getsockopt(zmq.LAST_ENDPOINT)
            socket.bind(address)
            return before

        before = run(bind)
        if debug is not None:

            def connect():  # type: ignore[no-untyped-def]
                debug.connect(address)
                debug.disconnect(before)

            self._runner("control")(connect)

        def unbind():  # type: ignore[no-untyped-def]
            def now():  # type: ignore[no-untyped-def]
                with contextlib.suppress(zmq.ZMQError):
                    socket.unbind(before)

            run(now, waits=False)

        return unbind

    def _runner(self, channel):  # type: ignore[no-untyped-def]
        """Return what runs a function on the thread that a channel's socket belongs to."""
        if channel == "iopub":
            return lambda work, waits=True: _on_thread(self._app.iopub_thread.schedule, work, waits)
        name = {"control": "control_thread", "shell": "shell_channel_thread"}.get(channel, "")
        thread = getattr(self._app, name, None) if name else None
        if thread is None or not thread.is_alive():
            return lambda work, waits=True: work()
        return lambda work, waits=True: _on_thread(thread.io_loop.add_callback, work, waits)

    def _beat_at(self, address):  # type: ignore[no-untyped-def]
        import zmq

        before = self._app.heartbeat
        beats = self._app.heartbeat = type(before)(zmq.Context(), address)
        beats.start()
        threading.Thread(target=before.context.term, daemon=True).start()  # which ends its thread


def _on_thread(schedule, work, waits):  # type: ignore[no-untyped-def]
    """Run work on another thread; return its result, or raise what it raised."""
    done = threading.Event()
    result: list = []  # type: ignore[type-arg]

    def run():  # type: ignore[no-untyped-def]
        try:
            result.append((work(), None))
        except Exception as error:
            result.append((None, error))
        done.set()

    schedule(run)
    if not waits:
        return None
    if not done.wait(THREAD_S):
        raise TimeoutError("a thread of the kernel does not answer")
    value, error = result[0]
    if error is not None:
        raise error
    return value


def seed_anew(namespace):  # type: ignore[no-untyped-def]
    """Give every source of random numbers a state of its own, so that no two kernels have the same.

    CUDA is not used for it: a kernel may be on its way back to the GPU.
    """
    random.seed()
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None and hasattr(torch, "seed"):
        _seed_torch(torch)
    for value in list(namespace.values()):
        if isinstance(value, random.Random):
            value.seed()
        elif numpy is not None and isinstance(value, (numpy.Generator, numpy.BitGenerator)):
            _seed_bits(getattr(value, "bit_generator", value))
        elif numpy is not None and isinstance(value, numpy.RandomState):
            value.seed()
        if torch is not None and isinstance(value, getattr(torch, "Generator", ())):
            value.seed()  # type: ignore[union-attr]


def _seed_bits(bits):  # type: ignore[no-untyped-def]
    """Give a bit generator of NumPy's a fresh state, and what it spawns others from, as unpickling does."""
    *_, state = type(bits)().__reduce__()
    bits.__setstate__(state)


def _seed_torch(torch):  # type: ignore[no-untyped-def]
    """Seed PyTorch's own generators: those of GPUs have their state in the host.

    torch.seed() asks NVML how many GPUs there are. Before CUDA begins it only notes what is to be seeded then.
    """
    if not torch.cuda.is_initialized():
        torch.seed()
        return
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.seed()


def end_with(pid):  # type: ignore[no-untyped-def]
    """End when a process ends, as ipykernel ends with the process that started it."""

    def follow():  # type: ignore[no-untyped-def]
        try:
            select.select([os.pidfd_open(pid)], [], [])
        except (AttributeError, OSError):  # before Python 3.9
            with contextlib.suppress(OSError):
                while True:
                    os.kill(pid, 0)
                    time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, name="affinode-parent", daemon=True).start()
