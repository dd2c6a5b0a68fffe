"""Drop what frameworks only cache on the GPU, inside a kernel of any environment: standard library only, Python 3.8
or later.

PyTorch and CuPy keep freed memory for later allocations. Before the controller parks an idle kernel it may ask
(setting `drop_caches_before_park`) that they give it back to the driver, so that it is not moved. The request makes
a descriptor readable in the kernel's event loop, so the kernel's main thread serves it between cells. Nothing is
imported for it and no array is touched.
"""

from __future__ import annotations

import ctypes
import sys

_OK, _BUSY, _NOTHING, _FAILED = 0, 1, 6, 7  # enum affinode_status


def _drop_torch(torch) -> bool:  # type: ignore[no-untyped-def]
    """Give PyTorch's unused blocks on all GPUs back to the driver; return whether PyTorch uses CUDA."""
    if not torch.cuda.is_initialized():
        return False
    torch.cuda.empty_cache()
    return True


def _drop_cupy(cupy) -> bool:  # type: ignore[no-untyped-def]
    """Give the unused blocks of CuPy's default pool back, on the current GPU only: other GPUs are not woken for it."""
    cupy.get_default_memory_pool().free_all_blocks()
    return True


_DROPPERS = {"torch": _drop_torch, "cupy": _drop_cupy}


def drop_caches() -> int:
    """Have the frameworks that are imported here drop their caches; return an affinode_status. Never raises."""
    status = _NOTHING
    for name, drop in _DROPPERS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            if drop(module) and status == _NOTHING:
                status = _OK
        except Exception as error:  # a half-imported module, or a version that does it in another way
            print(f"affinode: {name} did not drop its caches: {error}", file=sys.__stderr__)
            status = _FAILED
    return status


class CacheDropper:
    """Serves the controller's requests in one IPython shell."""

    def __init__(self, library: ctypes.CDLL, shell) -> None:  # type: ignore[no-untyped-def]
        """Raises AttributeError if the shim is of an earlier version."""
        library.affinode_caches_end.restype = None
        self._begin, self._end = library.affinode_caches_begin, library.affinode_caches_end
        self._fd = library.affinode_caches_fd
        self._shell = shell
        self._cells = 0
        self._is_serving = False

    def start(self) -> None:
        """Follow cells; the event loop runs from the first one on, and CUDA is not used before."""
        self._shell.events.register("pre_execute", self._cell_began)
        self._shell.events.register("post_execute", self._cell_ended)

    def _cell_began(self) -> None:
        self._cells += 1
        if not self._is_serving:
            self._is_serving = True
            self._serve()

    def _cell_ended(self) -> None:
        self._cells = max(self._cells - 1, 0)

    def _serve(self) -> None:
        """Add the descriptor of requests to the event loop of the thread that runs cells, if there is one."""
        loop = getattr(getattr(self._shell, "kernel", None), "io_loop", None)
        if loop is None:
            return  # IPython in a terminal: nothing runs between cells
        descriptor = self._fd()
        if descriptor >= 0:
            loop.add_handler(descriptor, self._requested, loop.READ)

    def serve_in_magic(self) -> None:
        """Serve a request, if there is one, while `%gpu_park` waits: nothing else runs in its cell."""
        self._serve_request(may_drop=True)

    def _requested(self, *_: object) -> None:
        """Serve a request when no cell runs; a cell that awaits something still runs."""
        self._serve_request(may_drop=self._cells == 0)

    def _serve_request(self, *, may_drop: bool) -> None:
        if not self._begin():
            return
        status = _FAILED
        try:
            status = drop_caches() if may_drop else _BUSY
        finally:
            self._end(status)
