"""Tells the service manager that this controller is ready, and that its loop still turns: systemd's sd_notify(3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess

ASK_WITHIN_S = 2.0


class ServiceManager:
    """The manager that started this process, if it asked for notices. Made and used on the event loop."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # not for processes that this one starts
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = os.environ.pop("WATCHDOG_USEC", "0")
        self._beat_s = int(microseconds) / 2e6 if watched and microseconds.isdigit() else 0.0
        self._loop = asyncio.get_running_loop()
        self._beat_handle: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Tell the manager that this controller serves; from now on it restarts one whose loop stands still."""
        self._tell("READY=1")
        if self._beat_s:
            self._beat()

    def stopping(self) -> None:
        """Tell the manager that this controller ends."""
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        self._tell("STOPPING=1")

    def ends_within(self, seconds: float) -> None:
        """Ask the manager for so much time before it kills this controller."""
        self._tell(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def may_shut_down(self) -> bool:
        """Return whether a signal to end may come from the machine's shutdown: systemd says so, or is not there."""
        if not self._address:
            return True
        ask = ("systemctl", "is-system-running")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(ask, capture_output=True, timeout=ASK_WITHIN_S, check=False).stdout
            return said.strip() == b"stopping"
        return False

    def _beat(self) -> None:
        self._tell("WATCHDOG=1")
        self._beat_handle = self._loop.call_later(self._beat_s, self._beat)

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        # A manager that does not listen must not end this controller.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as manager:
            manager.sendto(state.encode(), self._address)
