"""The `%gpu_…` magics, inside a kernel of any environment: standard library only, Python 3.8 or later.

They talk to the shim that is preloaded into this process, by ctypes, and the shim to the node controller.
Loaded by `kernel/startup.py` in kernels that our provisioner or `jupyter affinode run` started, and by
`%load_ext jupyter_affinode` everywhere else. Each magic prints one plain line; none ends in a traceback
because there is no shim, no controller or no GPU.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
import errno
import importlib.util
import os
import re
import struct
import sys
import threading
import traceback
from collections.abc import Callable

_PARK, _RESUME, _HOLD, _RELEASE, _STATUS = 1, 2, 3, 4, 5  # enum affinode_request_kind
_OK, _NOTHING = 0, 6  # enum affinode_status
_TEXT_SIZE = 192
_WARM = ("AFFINODE_WARM", "AFFINODE_PRELUDE", "AFFINODE_PRELUDE_FAILED")  # warming.py
_PAGE_SIZE = 4096
_PAGE_MAGIC = 0x47504641
_GPUS_OFFSET, _GPU_SIZE = 256, 96  # struct affinode_page

_STATES = {
    0: "No GPU used",
    1: "On the GPU",
    2: "Freeing",
    3: "GPU freed",
    4: "Waiting",
    5: "Getting it back",
    6: "GPU state lost",
}
_UNMOVABLE = (
    "in small blocks",
    "managed memory",
    "mapped by the application itself",
    "in stream-ordered pools",
    "CUDA arrays",
    "shared with another process",
    "on a device without virtual memory management, or limited by another library",
    "for another reason",
)
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LONGEST_S = 10**9  # longer means "as long as allowed"; in nanoseconds it fits into 64 bits


class ShimAbsent(Exception):
    """This process runs without the shim; the message tells the user why."""


class Shim:
    """The preloaded library of this process."""

    def __init__(self) -> None:
        path = os.environ.get("AFFINODE_LIBRARY")
        if not path:
            raise ShimAbsent("this kernel was started without jupyter-affinode, so its GPU is not managed")
        if os.environ.get("AFFINODE_DISABLE") == "1":
            raise ShimAbsent("jupyter-affinode is switched off here (AFFINODE_DISABLE=1)")
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
            library.affinode_request.argtypes = [
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_char_p,
                ctypes.c_size_t,
            ]
            library.affinode_page_copy.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            library.affinode_dying.restype = None
            library.affinode_cell_began.restype = None
        except (OSError, AttributeError) as error:
            raise ShimAbsent(
                f"the library of jupyter-affinode is not loaded in this kernel ({error})"
            ) from None
        self.library = library

    def request(
        self,
        kind: int,
        argument: int = 0,
        timeout_s: float = 65.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[int, str]:
        """Ask the controller; (enum affinode_status, its words), or a negative errno and "".

        The call into the shim waits on a thread of its own, so that an interrupt reaches the user's thread
        at once; the answer is then dropped. `meanwhile` is called again and again until then.
        """
        text = ctypes.create_string_buffer(_TEXT_SIZE)
        answer: list[int] = []

        def ask() -> None:
            answer.append(
                self.library.affinode_request(kind, argument, int(timeout_s * 1e9), text, ctypes.sizeof(text))
            )

        thread = threading.Thread(target=ask, name="affinode-request", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            meanwhile()
        return answer[0] if answer else -errno.EIO, text.value.decode("utf-8", "replace")

    def page(self) -> tuple[int, int, int, dict[str, int]] | None:
        """Return (state, resident bytes, parked bytes, unmovable bytes by reason); None without a page."""
        raw = ctypes.create_string_buffer(_PAGE_SIZE)
        size = self.library.affinode_page_copy(raw, _PAGE_SIZE)
        if size < _GPUS_OFFSET or struct.unpack_from("=I", raw, 0)[0] != _PAGE_MAGIC:
            return None
        (state,) = struct.unpack_from("=I", raw, 16)
        (gpus,) = struct.unpack_from("=I", raw, 68)
        resident = parked = 0
        unmovable: dict[str, int] = {}
        for index in range(gpus):
            offset = _GPUS_OFFSET + index * _GPU_SIZE
            if offset + _GPU_SIZE > size:
                break
            here = struct.unpack_from("=10Q", raw, offset + 16)
            resident, parked = resident + here[0], parked + here[1]
            for reason, words in enumerate(_UNMOVABLE):
                if here[2 + reason]:
                    unmovable[words] = unmovable.get(words, 0) + here[2 + reason]
        return state, resident, parked, unmovable

    def cell_began(self, *_: object) -> None:
        """Say that a new cell begins: an interrupt of the cell before must not reach it."""
        self.library.affinode_cell_began()

    def dying(self) -> None:
        """Say that this process is about to end: its calls no longer wait for the GPU."""
        self.library.affinode_dying()


def size_text(count: int) -> str:
    """Return bytes in the panel's words: "12 GiB", "1.5 GiB", "300 MiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            value = count / scale
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count} bytes"


def parse_duration(text: str) -> int | None:
    """Return the seconds of "1h", "30m", "90s", "1h30m"; None for no text, which means the default. Raises
    ValueError."""
    text = text.strip().lower()
    if not text:
        return None
    parts = re.findall(r"(\d+)\s*([dhms])", text)
    if not parts or re.sub(r"\d+\s*[dhms]|\s+", "", text):
        raise ValueError(text)
    return min(sum(int(count) * _UNITS[unit] for count, unit in parts), _LONGEST_S)


def _failure(status: int, text: str) -> str:
    """Return why a request was not served, in words for the user."""
    if text:
        return text
    if status >= 0:
        return f"the controller refused (status {status})"
    words = {
        errno.ENOTCONN: "no controller is running on this machine, so nothing is managed at the moment",
        errno.ETIMEDOUT: "the controller did not answer in time",
        errno.ENODEV: "this kernel has not used the GPU yet",
    }
    return words.get(-status, os.strerror(-status))


class GpuMagics:
    """The magics of one IPython shell."""

    def __init__(self, shell) -> None:  # type: ignore[no-untyped-def]
        self._shell = shell
        self.drop_caches: Callable[[], None] = lambda: None  # serves a controller's request in our magic

    def register(self) -> None:
        """Make the magics known to the shell."""
        for name, kind in (
            ("gpu_park", "line_cell"),
            ("gpu_hold", "line"),
            ("gpu_release", "line"),
            ("gpu_status", "line"),
            ("gpu_hibernate", "line"),
        ):
            self._shell.register_magic_function(getattr(self, name), kind, name)

    def gpu_park(self, line: str, cell: str | None = None) -> object:
        """Free the GPU now; the next use of CUDA gets it back.

        `%gpu_park` alone, or `%%gpu_park` above a cell that does not need the GPU: the cell runs with the GPU
        freed, or as it was if freeing was refused.
        """
        self._ask(_PARK, done="GPU freed", refused="Not freed")
        return None if cell is None else self._run_body(cell)

    def gpu_hold(self, line: str) -> None:
        """Keep the GPU for a while although idle: `%gpu_hold`, `%gpu_hold 30m`, `%gpu_hold 1h30m`."""
        try:
            duration_s = parse_duration(line)
        except ValueError:
            print("Not kept: say for how long as in %gpu_hold 90s, 30m, 1h or 1h30m.")
            return
        if duration_s == 0:
            print("Not kept: 0 seconds is no time; %gpu_release stops keeping the GPU.")
            return
        self._ask(_HOLD, (duration_s or 0) * 10**9, done="GPU kept", refused="Not kept")

    def gpu_release(self, line: str) -> None:
        """Stop keeping the GPU: it may be freed again when this kernel is idle."""
        self._ask(_RELEASE, done="GPU no longer kept", refused="Still kept")

    def gpu_hibernate(self, line: str) -> None:
        """Put this kernel on disk once the cell has ended; the next use of the notebook wakes it."""
        kernel = getattr(self._shell, "kernel", None)
        if not os.environ.get("AFFINODE_HIBERNATES") or kernel is None:
            print(
                "Not hibernated: this kernel's server has no folder for images (hibernate_dir), or had none yet."
            )
            return
        kernel.session.send(kernel.iopub_socket, "affinode_hibernate", {}, parent=kernel.get_parent())
        print("This kernel hibernates once no cell runs.")

    def gpu_status(self, line: str) -> None:
        """Show where this kernel's GPU memory is, and what of it cannot be moved."""
        try:
            shim = Shim()
        except ShimAbsent as absent:
            print(f"GPU: {absent}.")
            return
        status, text = shim.request(_STATUS, timeout_s=5)
        page = shim.page()
        words = text if status == _OK and text else self._own_words(status, page)
        unmovable = page[3] if page else {}
        if unmovable:
            stays = ", ".join(f"{size_text(count)} {why}" for why, count in sorted(unmovable.items()))
            words += "; stays on the GPU: " + stays
        print(words)

    @staticmethod
    def _own_words(status: int, page: tuple[int, int, int, dict[str, int]] | None) -> str:
        """Return what this process knows by itself, if the controller sent no text."""
        if page is None:
            return "No GPU used"
        state, resident, parked, _ = page
        words = _STATES.get(state, f"State {state}")
        if resident or parked:
            words += f": {size_text(resident)} on the GPU, {size_text(parked)} in RAM"
        return words if status == _OK else "{} ({})".format(words, _failure(status, ""))

    def _ask(self, kind: int, argument: int = 0, *, done: str, refused: str) -> None:
        """Send one request and print its one line."""
        try:
            status, text = Shim().request(kind, argument, meanwhile=self.drop_caches)
        except ShimAbsent as absent:
            print(f"{refused}: {absent}.")
            return
        if status == _OK:
            print(text or done + ".")
        elif status == _NOTHING:
            print(text or "Nothing to do: this kernel has nothing on the GPU that could be moved.")
        else:
            print("{}: {}".format(refused, _failure(status, text).rstrip(".")) + ".")

    def _run_body(self, cell: str) -> object:
        """Run a cell's text in the user's namespace; return the value of its last expression."""
        shell = self._shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source)
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        exec(shell.compile(tree, name, "exec"), shell.user_ns)
        return None if last is None else eval(shell.compile(last, name, "eval"), shell.user_ns)


def load_ipython_extension(shell) -> GpuMagics:  # type: ignore[no-untyped-def]
    """Register the magics, for `%load_ext jupyter_affinode` and at the start of a kernel."""
    magics = GpuMagics(shell)
    magics.register()
    return magics


def start_in_kernel(namespace: dict[str, object]) -> None:
    """Set up this kernel's process, once, from kernel/startup.py. Never raises.

    Restores PYTHONSTARTUP for the process's children, registers the magics and the farewell to the shim when
    this is IPython, and runs the file that PYTHONSTARTUP named before, as IPython or Python would have.
    """
    chained = os.environ.pop("AFFINODE_STARTUP_CHAIN", None)
    if chained:
        os.environ["PYTHONSTARTUP"] = chained
    else:
        os.environ.pop("PYTHONSTARTUP", None)
    shell = _ipython()
    if shell is not None:
        _keep_shim_informed(shell, load_ipython_extension(shell))
    if chained:
        _run_startup_file(chained, namespace, shell)
    if shell is not None and any(os.environ.get(name) for name in _WARM):
        _load_beside("warming").begin(shell, namespace, _load_beside)
    _stay(shell)


def _stay(shell) -> None:  # type: ignore[no-untyped-def]
    """Have a kernel that may outlive its server live through signals to all processes of a unit, job or container.

    After the start-up code of others, whose own handlers count, and which has nothing yet that could be lost.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not any(os.environ.get(name) for name in ("AFFINODE_STAYS", "AFFINODE_WARM")):
        return
    try:
        kernel.affinode_staying = _load_beside("staying").Staying(
            kernel
        )  # a warm kernel's taker may end with it
        kernel.affinode_staying.settle()
    except (OSError, SyntaxError, AttributeError, ValueError) as error:
        print(
            f"affinode: SIGTERM ends this kernel also where it may outlive its server: {error}",
            file=sys.stderr,
        )


def _ipython():  # type: ignore[no-untyped-def]
    """Return the IPython shell of this process; None in a plain Python."""
    if "IPython" not in sys.modules:
        return None
    return sys.modules["IPython"].get_ipython()


def _keep_shim_informed(shell, magics: GpuMagics) -> None:  # type: ignore[no-untyped-def]
    """Tell the shim when a cell begins, and at exit that destructors must not wait for the GPU.

    Exit handlers run last-in-first-out and libraries register theirs in cells: ours moves to the front after
    every cell.
    """
    try:
        shim = Shim()
    except ShimAbsent:
        return
    dying = shim.dying

    def move_to_front(*_: object) -> None:
        atexit.unregister(dying)
        atexit.register(dying)

    _hold_output(shell)
    _serve_cache_drops(shim, shell, magics)
    _show_waits(shim, shell)
    atexit.register(dying)
    shell.events.register("pre_run_cell", shim.cell_began)
    shell.events.register("post_run_cell", move_to_front)


def _serve_cache_drops(shim: Shim, shell, magics: GpuMagics) -> None:  # type: ignore[no-untyped-def]
    """Have frameworks drop their caches when the controller asks for it."""
    try:
        dropper = _load_beside("cache_release").CacheDropper(shim.library, shell)
    except (OSError, SyntaxError, AttributeError) as error:
        print(f"affinode: caches will not be dropped before the GPU is freed: {error}", file=sys.stderr)
    else:
        dropper.start()
        magics.drop_caches = dropper.serve_in_magic


def _hold_output(shell) -> None:  # type: ignore[no-untyped-def]
    """Have a kernel that may hibernate publish nothing while it is on its way."""
    file = os.environ.get("AFFINODE_HIBERNATES")
    kernel = getattr(shell, "kernel", None)
    if file and kernel is not None:
        try:
            _load_beside("output_hold").hold_output(kernel, file)
        except (OSError, SyntaxError, AttributeError) as error:
            print(f"affinode: output at the moment of hibernation may be lost: {error}", file=sys.stderr)


def _show_waits(shim: Shim, shell) -> None:  # type: ignore[no-untyped-def]
    """Show in a cell's output that it waits; where that cannot be, the shim writes a line to stderr."""
    try:
        display = _load_beside("waiting_display").WaitingDisplay(shim.library, shell)
    except (OSError, SyntaxError, AttributeError):
        return
    shell.events.register("pre_run_cell", display.cell_began)


def _load_beside(name: str):  # type: ignore[no-untyped-def]
    """Load the module of that name from the folder of this file, which is on no path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location("_affinode_kernel_" + name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _run_startup_file(path: str, namespace: dict[str, object], shell) -> None:  # type: ignore[no-untyped-def]
    """Run the user's own startup file; its errors are shown and do not stop the kernel's start."""
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        return
    before = namespace.get("__file__", _run_startup_file)
    namespace["__file__"] = path
    try:
        if shell is not None and path.endswith((".ipy", ".ipynb")):
            shell.safe_execfile_ipy(path)
        elif shell is not None:
            shell.safe_execfile(path, namespace, raise_exceptions=True)
        else:
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), namespace)
    except Exception:
        if shell is not None:
            shell.showtraceback()
        else:
            traceback.print_exc()
    finally:
        if before is _run_startup_file:
            namespace.pop("__file__", None)
        else:
            namespace["__file__"] = before
