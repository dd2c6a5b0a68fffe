"""Run a kernel's prelude, inside a kernel of any environment: standard library only, Python 3.8 or later.

A kernelspec may name a prelude: a Python file that runs before the kernel's first cell, in its namespace. A *warm*
kernel runs it before a notebook wants the kernel, and waits to be taken (taking.py). It says in the folder of
its entry how far it is: `started.json` once it runs, `ready.json` once the prelude has ended. Where that folder is gone
the kernel is not wanted any more, and ends. Loaded by magics.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import sys
import time
import traceback

WARM, PRELUDE, FAILED = "AFFINODE_WARM", "AFFINODE_PRELUDE", "AFFINODE_PRELUDE_FAILED"
STARTED, READY = "started.json", "ready.json"
STARTED_FIELD = 19  # of /proc/PID/stat, behind the program's name
OUTPUT_MAX = 20_000  # characters of what a prelude printed, that are shown if it failed
IPYTHON = (".ipy", ".ipynb")
CODE = (".py", *IPYTHON)
CONFIGURATION = ("ipython_config", "ipython_kernel_config")


def begin(shell, namespace, load_beside):  # type: ignore[no-untyped-def]
    """Run the prelude that the environment names, if any; have a warm kernel wait to be taken."""
    entry, prelude, failed = (os.environ.pop(name, None) for name in (WARM, PRELUDE, FAILED))
    if entry:
        _end_unless_wanted(entry)
        _write(entry, STARTED, own_name())
    ran = Ran() if entry else None
    before, began = set(namespace), time.monotonic()
    error = output = ""
    if failed:  # the same prelude, a moment ago
        with contextlib.suppress(OSError), open(failed, encoding="utf-8") as file:
            error = file.read()
    elif prelude:
        error, output = run_prelude(prelude, shell, namespace)
        if error:
            error = _in_words(prelude, error, output)
    at_first_cell(shell, error, set(namespace) - before)
    if entry:
        try:
            load_beside("taking").wait_to_be_taken(shell, load_beside)
        except AttributeError as unknown:
            error = error or f"This kernel cannot be handed to a notebook: {unknown}"
        started = {"error": error or None, "took_s": time.monotonic() - began}
        once_started(shell.kernel, lambda: say_ready(shell, entry, started, ran))


def say_ready(shell, entry, started, ran):  # type: ignore[no-untyped-def]
    """Say that the kernel can be taken, and of which files it is made. IPython's startup files have run, too."""
    made_of = [*code_files(), *startup_files(shell), *ran.end()]
    _write(
        entry,
        READY,
        {
            **started,
            "files": {**dict.fromkeys(configuration_files(shell)), **stamps(made_of)},
            "folders": stamps(package_folders()),
            "has_shim": bool(os.environ.get("AFFINODE_LIBRARY")),
        },
    )
    _end_unless_wanted(entry)


def once_started(kernel, work):  # type: ignore[no-untyped-def]
    """Do some work when the kernel's application has made all ready and starts the kernel."""
    start = kernel.start

    def start_and_work(*arguments, **named):  # type: ignore[no-untyped-def]
        del kernel.start
        work()
        return start(*arguments, **named)

    kernel.start = start_and_work


def own_name():  # type: ignore[no-untyped-def]
    """Return what tells this process from a later one with its number, as keeping/processes.py does."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        started = int(file.read().rpartition(")")[2].split()[STARTED_FIELD])
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return {"pid": os.getpid(), "started": started, "boot": file.read().strip()}


def run_prelude(path, shell, namespace):  # type: ignore[no-untyped-def]
    """Run a prelude in its own folder; return its traceback, "" if it did not fail, and what it printed."""
    output, here = PreludeOutput(), os.getcwd()
    folder = os.path.dirname(os.path.abspath(path))
    with _nothing_shown(output):
        try:
            os.chdir(folder)
            sys.path.insert(0, folder)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            if path.endswith(IPYTHON):
                text = shell.transform_cell(text)
            namespace["__file__"] = path
            exec(compile(text, path, "exec"), namespace)
        except BaseException as error:  # also SystemExit: the kernel is to start all the same
            shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
            return "".join(traceback.format_exception(type(error), error, shown)), output.said
        finally:
            namespace.pop("__file__", None)
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)
            with contextlib.suppress(OSError):
                os.chdir(here)
    return "", output.said


class PreludeOutput:
    """What a prelude prints, as far as it would be shown if it failed."""

    def __init__(self):  # type: ignore[no-untyped-def]
        self.said, self.is_over = "", False

    def add(self, text):  # type: ignore[no-untyped-def]
        """Keep the end of it."""
        self.said = (self.said + text)[-OUTPUT_MAX:]


class PreludeStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a prelude, and the kernel's own stream from the prelude's end on.

    Libraries keep the stream that there is when they are imported, for as long as the kernel lives: handlers of
    `logging`, for one. In a kernel that runs no prelude that is the kernel's own.
    """

    def __init__(self, output, real):  # type: ignore[no-untyped-def]
        self._output, self._real = output, real

    def write(self, text):  # type: ignore[no-untyped-def]
        """Write to where it belongs now."""
        if self._output.is_over:
            return self._real.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.add(text)
        return len(text)

    def writelines(self, lines):  # type: ignore[no-untyped-def]
        """Write them one after the other."""
        for line in lines:
            self.write(line)

    def flush(self):  # type: ignore[no-untyped-def]
        """Flush the kernel's own; what a prelude prints is kept."""
        if self._output.is_over:
            self._real.flush()

    def close(self):  # type: ignore[no-untyped-def]
        """Do nothing: the kernel's own stream is not the holder's to close."""

    def isatty(self):  # type: ignore[no-untyped-def]
        """Answer as the kernel's own does, as all else does."""
        return self._real.isatty()

    def fileno(self):  # type: ignore[no-untyped-def]
        """Return the kernel's own descriptor."""
        return self._real.fileno()

    def writable(self):  # type: ignore[no-untyped-def]
        """Return True."""
        return True

    encoding = property(lambda self: self._real.encoding)
    errors = property(lambda self: self._real.errors)

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self.__dict__["_real"], name)


@contextlib.contextmanager
def _nothing_shown(output):  # type: ignore[no-untyped-def]
    """Keep what a prelude prints or displays out of the notebook."""
    from IPython.utils.capture import capture_output

    with contextlib.ExitStack() as quiet:
        quiet.enter_context(capture_output(stdout=False, stderr=False, display=True))
        quiet.enter_context(contextlib.redirect_stdout(PreludeStream(output, sys.stdout)))
        quiet.enter_context(contextlib.redirect_stderr(PreludeStream(output, sys.stderr)))
        quiet.callback(setattr, output, "is_over", True)
        yield


def _in_words(prelude, error, output):  # type: ignore[no-untyped-def]
    said = f"It had printed:\n{output[-OUTPUT_MAX:]}\n" if output.strip() else ""
    return f"The prelude of this kernel failed ({prelude}). What it was to prepare may be missing.\n{said}{error}"


def at_first_cell(shell, words, names):  # type: ignore[no-untyped-def]
    """Show words in the first cell, and have %who list the prelude's names as a cell's."""

    def first_cell(*_):  # type: ignore[no-untyped-def]
        shell.events.unregister("pre_run_cell", first_cell)
        for name in names:
            shell.user_ns_hidden.pop(name, None)
        if words:
            print(words, file=sys.stderr)

    if words or names:
        shell.events.register("pre_run_cell", first_cell)


def code_files():  # type: ignore[no-untyped-def]
    """Return the files that this process has its code from: imported modules and loaded libraries."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6 and "x" in fields[1]:
                found.add(fields[5].rstrip("\n"))
    return sorted(path for path in found if isinstance(path, str) and path.startswith("/"))


class Ran:
    """The files whose code was run, by whatever way: `exec` of what was read from one, `%run`, `runpy`.

    Python's auditing tells of each file that is opened, and of code by its name. A hook cannot be removed, so all that
    it does is to look at `is_over` once the kernel is ready.
    """

    def __init__(self):  # type: ignore[no-untyped-def]
        self.is_over = False
        self._files = set()  # type: ignore[var-annotated]
        sys.addaudithook(self._hear)

    def _hear(self, event, told):  # type: ignore[no-untyped-def]
        if self.is_over:
            return
        if event == "open":
            path, _, flags = told
            if isinstance(path, str) and path.endswith(CODE) and flags & os.O_ACCMODE == os.O_RDONLY:
                self._files.add(os.path.abspath(path))
        elif event == "exec" and told[0].co_filename.startswith("/"):
            self._files.add(told[0].co_filename)

    def end(self):  # type: ignore[no-untyped-def]
        """Return them, and take note of no more."""
        self.is_over = True
        return sorted(self._files)


def startup_files(shell):  # type: ignore[no-untyped-def]
    """Return the files that IPython ran before the first cell, and the folders in which there may be more of them."""
    from IPython.core import application

    above = [*getattr(application, "ENV_CONFIG_DIRS", ()), *getattr(application, "SYSTEM_CONFIG_DIRS", ())]
    folders = [shell.profile_dir.startup_dir, *(os.path.join(each, "startup") for each in above)]
    files = [
        os.path.join(folder, name)
        for folder in folders
        if os.path.isdir(folder)
        for name in os.listdir(folder)
    ]
    chained = os.environ.get("PYTHONSTARTUP")
    return [*folders, *(each for each in files if each.endswith(CODE)), *([chained] if chained else [])]


def configuration_files(shell):  # type: ignore[no-untyped-def]
    """Return the files from which IPython and ipykernel take settings: also those that are not there, and may be."""
    app = shell.kernel.parent
    return [
        os.path.join(folder, f"{name}{suffix}")
        for folder in app.config_file_paths
        for name in CONFIGURATION
        for suffix in (".py", ".json")
    ]


def package_folders():  # type: ignore[no-untyped-def]
    """Return the folders in which packages are installed: installing one, or removing it, changes their time."""
    return [path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages"))]


def stamps(paths):  # type: ignore[no-untyped-def]
    """Return when files were changed last, in nanoseconds, and their sizes."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                found[path] = [status.st_mtime_ns, status.st_size]
    return found


def _end_unless_wanted(entry):  # type: ignore[no-untyped-def]
    if not os.path.isdir(entry):
        os._exit(0)


def _write(folder, name, told):  # type: ignore[no-untyped-def]
    """Write a file whole or not at all; end where its folder is gone."""
    path = os.path.join(folder, name)
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(path + ".new", path)
    except FileNotFoundError:
        os._exit(0)
