"""Which part of the system ends, how, with which kernels, and what a user is to find afterwards.

A kernel is either kept, with its contents equal and its cell's output complete, or lost after a sentence that said so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MODES = ("never", "parked", "all", "hibernated")  # of keep_kernels
IDLE_ON_GPU = ("gpu", "context")
KINDS = (
    "gpu",  # idle, with GPU memory
    "plain",  # idle, without a GPU
    "context",  # a CUDA context and nothing that could be moved
    "cell",  # its cell runs
    "gpu_cell",  # its cell runs, and it has GPU memory
    "input",  # waits in input()
    "hibernated",
    "hibernating",  # on its way
    "waking",  # on its way, for a tab's cell
    "warm",
    "bash",
)
ENDS = (
    ("server", "SIGTERM"),
    ("server", "SIGKILL"),
    ("keeper", "SIGTERM"),
    ("keeper", "SIGKILL"),
    ("supervisor", "SIGTERM"),
    ("supervisor", "SIGKILL"),
    ("controller", "SIGTERM"),
    ("controller", "SIGKILL"),
    ("all at once", "SIGTERM"),
)


@dataclass(frozen=True)
class Outcome:
    """What a user finds of a kernel. `lost`: matches the sentence that said so before; None: the kernel is kept.

    In that, {kernel} is the kernel, by its id or its notebook.
    """

    lost: str | None = None
    is_interrupted: bool = False  # the cell says that it was interrupted


OUTCOMES = {
    "kept": Outcome(),
    "interrupted": Outcome(is_interrupted=True),
    "shut": Outcome(lost=r"Shutting down \d+ kernels?"),  # Jupyter Server's own sentence
    "on GPU": Outcome(lost=r"{kernel}.* is not kept: it uses the GPU"),
    "no image": Outcome(lost=r"{kernel}.* is not (?:hibernated|kept): no GPU memory that can be moved"),
}

# The words of OUTCOMES, one for each of MODES. "*": of each kind that has no line of its own.
TABLE = {
    ("server", "SIGTERM"): {
        "*": ("shut", "kept", "kept", "kept"),
        "cell": ("shut", "kept", "kept", "interrupted"),
        "context": ("shut", "on GPU", "kept", "no image"),
        "gpu_cell": ("shut", "kept", "kept", "interrupted"),
        "input": ("shut", "kept", "kept", "interrupted"),
        "waking": ("shut", "kept", "kept", "interrupted"),
        "warm": ("kept", "kept", "kept", "kept"),
    },
    # The keeper notices by itself: nothing is parked, interrupted or written. Where no kernel is to outlive its
    # server, it keeps them for a minute.
    ("server", "SIGKILL"): {"*": ("kept", "kept", "kept", "kept")},
    # As the server's end by SIGTERM: kernels live through the signal, and what has SIGTERM sent gives them the time.
    ("all at once", "SIGTERM"): {
        "*": ("shut", "kept", "kept", "kept"),
        "cell": ("shut", "kept", "kept", "interrupted"),
        "context": ("shut", "on GPU", "kept", "no image"),
        "gpu_cell": ("shut", "kept", "kept", "interrupted"),
        "input": ("shut", "kept", "kept", "interrupted"),
        "waking": ("shut", "kept", "kept", "interrupted"),
        "warm": ("kept", "kept", "kept", "kept"),
    },
    # The server goes on, and has all kernels as before.
    **{
        (part, how): {"*": ("kept", "kept", "kept", "kept")}
        for part in ("keeper", "supervisor", "controller")
        for how in ("SIGTERM", "SIGKILL")
    },
}


def outcome(part: str, how: str, mode: str, kind: str) -> Outcome:
    """Return what is to become of a kernel when a part ends."""
    rows = TABLE[part, how]
    return OUTCOMES[rows.get(kind, rows["*"])[MODES.index(mode)]]


def outcome_of_idle(mode: str, kind: str) -> Outcome:
    """Return what is to become of a kernel whose cell has ended when its server gets SIGTERM."""
    if kind == "warm":
        return OUTCOMES["kept"]
    has_gpu = kind in ("gpu", "gpu_cell")
    return outcome(
        "server", "SIGTERM", mode, "gpu" if has_gpu else "context" if kind == "context" else "plain"
    )


def runs() -> Iterator[tuple[str, str, str]]:
    """Yield each part, how it ends, and the value of keep_kernels: one server has kernels of all kinds."""
    for part, how in ENDS:
        for mode in MODES:
            yield part, how, mode
