"""The doctor's host checks: what on this machine decides how fast GPU memory moves to host memory and back."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from ..units import bytes_in_words
from .check import Check

SYS = Path("/sys")
NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"  # PCI class of GPUs, with and without a display
HUGE_PAGE_BYTES = 2 * 2**20


def host_checks(lot_bytes: int = 0, sys_folder: Path = SYS) -> Iterator[Check]:
    """Check huge pages, locked memory and NUMA. `lot_bytes` is the controller's setting."""
    yield _transparent_huge_pages(sys_folder)
    yield _lots(lot_bytes, sys_folder)
    yield _locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield _numa(sys_folder)


def _transparent_huge_pages(sys_folder: Path) -> Check:
    """Check the huge pages of kernels' own memory, into which they copy."""
    path = sys_folder / "kernel/mm/transparent_hugepage/enabled"
    chosen = _chosen(path)
    if chosen in ("always", "madvise"):
        return Check("huge pages", "ok", f"transparent huge pages: {chosen}", is_detail=True)
    advice = f"Moves of GPU memory are slower without them: echo madvise > {path}"
    return Check("huge pages", "warn", "transparent huge pages are off", advice)


def _lots(lot_bytes: int, sys_folder: Path) -> Check:
    """Check the huge pages of lots, which are shared memory and have settings of their own."""
    free = _number(sys_folder / "kernel/mm/hugepages/hugepages-2048kB/free_hugepages") * HUGE_PAGE_BYTES
    shared_path = sys_folder / "kernel/mm/transparent_hugepage/shmem_enabled"
    shared = _chosen(shared_path)
    pages = f"{bytes_in_words(free)} of huge pages set aside and free"
    pages += f", shared memory's huge pages: {shared or 'unknown'}"
    if not lot_bytes:
        return Check("lots", "ok", f"off (NodeController.lot_bytes); {pages}", is_detail=True)
    text = f"{bytes_in_words(lot_bytes)}; {pages}"
    if shared in ("always", "within_size", "advise", "force") or free >= lot_bytes:
        return Check("lots", "ok", text, is_detail=True)
    advice = (
        f"Memory of small pages takes about twice as long to be registered with the GPU: echo advise > {shared_path},"
        f" or set huge pages aside: sysctl vm.nr_hugepages={-(-lot_bytes // HUGE_PAGE_BYTES)}"
    )
    return Check("lots", "warn", text, advice)


def _locked_memory(limit: int) -> Check:
    """Check the limit on locked memory: the driver does not need one, but a sandbox may enforce it."""
    if limit == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", "no limit (RLIMIT_MEMLOCK)", is_detail=True)
    text = (
        f"at most {bytes_in_words(limit)} (RLIMIT_MEMLOCK); NVIDIA's driver registers host memory beyond it."
        " Where that is refused, copies go through a small buffer and are slower"
    )
    return Check("locked memory", "ok", text, is_detail=True)


def _numa(sys_folder: Path) -> Check:
    """Check NUMA: copies to another node's memory cross the processors' interconnect."""
    nodes = len(list((sys_folder / "devices/system/node").glob("node[0-9]*")))
    if nodes <= 1:
        return Check("numa", "ok", "one node: all host memory is near every GPU", is_detail=True)
    places = sorted(_gpu_nodes(sys_folder).items())
    known = ", ".join(f"{address} at node {node}" for address, node in places if node >= 0)
    if places and all(node >= 0 for _, node in places):
        return Check("numa", "ok", f"{nodes} nodes; GPUs: {known}", is_detail=True)
    unknown = [address for address, node in places if node < 0]
    which = f"of {', '.join(unknown)} the node is not known" if unknown else "no GPU is seen on the PCI bus"
    advice = (
        "If freeing GPU memory is slow, start the server near its GPU: numactl --cpunodebind=N --membind=N jupyter lab"
        " (nvidia-smi topo -m says which)."
    )
    return Check("numa", "ok", f"{nodes} nodes; {which}", advice, is_detail=True)


def _gpu_nodes(sys_folder: Path) -> dict[str, int]:
    """Return the NUMA node of each NVIDIA GPU by its PCI address; -1 where the firmware does not say."""
    nodes = {}
    for device in (sys_folder / "bus/pci/devices").glob("*"):
        if _text(device / "vendor") == NVIDIA and _text(device / "class").startswith(DISPLAY_CLASS):
            nodes[device.name] = _number(device / "numa_node", absent=-1)
    return nodes


def _chosen(path: Path) -> str | None:
    """Return the word in brackets of a setting such as `always [madvise] never`."""
    words = [word[1:-1] for word in _text(path).split() if word.startswith("[")]
    return words[0] if words else None


def _number(path: Path, absent: int = 0) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return absent


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
