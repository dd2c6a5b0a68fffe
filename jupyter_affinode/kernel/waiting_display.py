"""Show in a cell's output that the cell waits for the GPU, inside a kernel of any environment: standard library
only, Python 3.8 or later.

A call that waits cannot print, and a line that the shim wrote to stderr would stay in the notebook. So a thread asks
the shim what there is to show, and keeps it in an updatable display (`display_id`) of the cell that was running when
the wait began. The display is emptied when the wait ends; its metadata tells the page what to empty where the kernel
cannot, because it was restarted or the page loaded anew. A program that keeps Python's lock in its CUDA call shows
nothing: the thread runs when the wait is over, and finds nothing to show. Loaded by `kernel/magics.py`.
"""

from __future__ import annotations

import ctypes
import threading
import uuid

_LONG_NS = 10**9 * 86400
_TEXT_SIZE = 256


class WaitingDisplay:
    """The waiting display of one IPython kernel."""

    def __init__(self, library: ctypes.CDLL, shell) -> None:  # type: ignore[no-untyped-def]
        """Raise AttributeError if the shim is older, or the shell is no kernel's and has no displays."""
        self._next = library.affinode_next_display
        self._next.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
        self._next.restype = ctypes.c_uint32
        self._publisher = shell.display_pub
        self._session, self._socket = self._publisher.session, self._publisher.pub_socket
        self._cell: dict[str, object] = {}
        self._thread: threading.Thread | None = None

    def cell_began(self, *_: object) -> None:
        """Note the cell to which a display belongs; the first one starts the thread."""
        self._cell = self._publisher.parent_header
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="affinode-waiting", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        text = ctypes.create_string_buffer(_TEXT_SIZE)
        version = 0
        cell: dict[str, object] = {}
        display_id = ""
        while True:
            version = self._next(version, _LONG_NS, text, _TEXT_SIZE)
            words = text.value.decode("utf-8", "replace")
            if not words and not display_id:
                continue
            kind = "update_display_data" if display_id else "display_data"
            if not display_id:
                cell, display_id = self._cell, uuid.uuid4().hex
            self._send(kind, words, cell, display_id)
            if not words:
                display_id = ""

    def _send(self, kind: str, words: str, cell: dict[str, object], display_id: str) -> None:
        content = {
            "data": {"text/plain": words},
            "metadata": {"affinode_waiting": True} if words else {},
            "transient": {"display_id": display_id},
        }
        self._session.send(self._socket, kind, content, parent=cell, ident=self._publisher.topic)
