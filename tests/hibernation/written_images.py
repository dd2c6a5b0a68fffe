"""Images as CRIU and a keeper would have written them."""

from __future__ import annotations

import os

from jupyter_affinode.hibernation.image import Image
from jupyter_affinode.hibernation.store import image_of
from jupyter_affinode.keeping.processes import ProcessName

GONE = ProcessName(2**22 - 1, 1, "")


def made(store, processes=(GONE,), kernel_id="one", record=None) -> Image:
    """A whole image, of processes that CRIU had written."""
    image = image_of(store, kernel_id)
    image.begin()
    (image.process_folder / "pages-1.img").write_bytes(os.urandom(100_000))
    (image.process_folder / "core-7.img").write_bytes(b"core")
    (image.process_folder / "files.img").write_bytes(bytes(8))
    for process in processes:
        (image.process_folder / f"core-{process.pid}.img").write_bytes(b"core")
    (image.folder / "gpu-7").write_bytes(bytes(4096))
    packing = image.packing()
    packing.end(is_in_vain=False)
    image.finish(
        pages=packing.run(),
        record=record or {"kernel_id": kernel_id},
        undelivered={"messages": {}, "dropped": {}, "inputs": []},
        processes=list(processes),
        has_cuda=True,
    )
    return image
