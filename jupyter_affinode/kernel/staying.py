"""Have a kernel that may outlive its server live through the end of its unit, job or container: standard library only,
Python 3.8 or later.

What ends all of these sends SIGTERM to each of their processes in the same moment. The server and the keeper put the
kernel on disk then, or leave it running, so the kernel must not die first. systemd sends SIGHUP, too, when a login
session ends, and SIGTERM once more when a service's main process has ended; Slurm sends SIGTERM twice at once. So these
signals end the kernel only after a shutdown_request, and SIGKILL always does.

- The kernel's own process alone stays. One that is forked from it has the default again, as a program that it starts.
- A handler that is set in a cell goes before this one.
- The handler does nothing, so it does not matter when Python's main thread comes to it, or that a cell holds the
  interpreter's lock.

Loaded by magics.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
from functools import partial

STAYS, PARENT = "AFFINODE_STAYS", "JPY_PARENT_PID"  # the second: ipykernel ends with that process
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
SHUTDOWN = "shutdown_request"
SIGNAL_SET_BYTES = 128  # sigset_t of glibc and musl


class Staying:
    """What signals to end do to this kernel."""

    def __init__(self, kernel):  # type: ignore[no-untyped-def]
        """Raise AttributeError if this is no kernel of ipykernel's: then it could not be shut down politely."""
        self._handlers = (kernel.control_handlers, kernel.shell_handlers)
        self._pid = os.getpid()
        self._libc = ctypes.PyDLL(None)
        self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._libc.signal.restype = ctypes.c_void_p
        self._is_prepared = False

    def settle(self):  # type: ignore[no-untyped-def]
        """Stay or not, as the environment says. Called on the main thread."""
        if os.environ.get(STAYS) != "1" or os.environ.get(PARENT):
            self._end_as_usual()
            return
        if not self._is_prepared:
            self._is_prepared = True
            self._follow_forks()
            for handlers in self._handlers:
                if SHUTDOWN in handlers:
                    handlers[SHUTDOWN] = partial(self._shut_down, handlers[SHUTDOWN])
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._stay)
                signal.siginterrupt(number, False)  # C code in a cell sees no call that was interrupted

    def _stay(self, number, _frame):  # type: ignore[no-untyped-def]
        if os.getpid() != self._pid:  # forked by C code, which told Python nothing
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _shut_down(self, handler, *message):  # type: ignore[no-untyped-def]
        self._end_as_usual()
        return handler(*message)

    def _end_as_usual(self):  # type: ignore[no-untyped-def]
        """Have signals end this process, unless a cell has set a handler."""
        for number in SIGNALS:
            if signal.getsignal(number) == self._stay:
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (
                    ValueError
                ):  # on the thread of the control channel, since Python does it on the main one alone
                    self._libc.signal(number, None)  # SIG_DFL

    def _follow_forks(self):  # type: ignore[no-untyped-def]
        """Have children that are forked end by signals.

        Python forgets a signal that comes before a child is set up, and a pool that is terminated at once would wait
        for ever: so it waits until the child has the default. These are calls of C's, since an interrupt that comes
        during a fork would be raised in a function of Python's, and be lost.
        """
        ours, before = (ctypes.create_string_buffer(SIGNAL_SET_BYTES) for _ in range(2))
        self._libc.sigemptyset(ours)
        for number in SIGNALS:
            self._libc.sigaddset(ours, int(number))
        mask = self._libc.pthread_sigmask
        mask.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        give_back = partial(mask, int(signal.SIG_SETMASK), before, None)

        def in_child():  # type: ignore[no-untyped-def]
            self._end_as_usual()
            give_back()

        os.register_at_fork(
            before=partial(mask, int(signal.SIG_BLOCK), ours, before),
            after_in_parent=give_back,
            after_in_child=in_child,
        )
