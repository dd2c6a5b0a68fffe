"""Every reason that the API, the metrics, the ledger and the Lab name by a short code, declared once.

`docs/generate.py` puts them into `openapi.json`, and into the Lab's types. Adding one takes a member here and its use.
"""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """A short code for programs, with its meaning."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Reason:
        """Make a member whose value is its code."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.meaning = meaning
        return made

    def __str__(self) -> str:
        return str(self.value)

    @property
    def phrase(self) -> str:
        """Return the meaning as a part of a sentence."""
        return self.meaning[0].lower() + self.meaning[1:].rstrip(".")


class Refusal(Reason):
    """Why a request is refused or a move is not made."""

    # Of the request itself
    BAD_REQUEST = "bad-request", "The request is not what the API describes."
    BAD_SETTING = "bad-setting", "A setting is unknown or cannot have that value."
    NOT_FOUND = "not-found", "There is nothing at this path."
    NOT_ALLOWED = "not-allowed", "The path does not have this method."
    GONE = "gone", "The connection is closed."
    INTERNAL = "internal", "The controller failed; its log has the error."
    # Of the user that asks
    BAD_GRANT = "bad-grant", "The grant is not good."
    GRANT_REQUIRED = "grant-required", "A grant is needed and there is none."
    FORBIDDEN = "forbidden", "Only administrators may do this."
    TOO_MANY_REQUESTS = "too-many-requests", "The user asks more often than one user may."
    TOO_MANY_STREAMS = "too-many-streams", "The user has as many streams open as one user may."
    TOO_MANY_KERNELS = "too-many-kernels", "The controller knows as many kernels as it may."
    HOLD_QUOTA = "hold-quota", "The user holds as much GPU memory as one user may."
    # Of what is asked for
    UNKNOWN_KERNEL = "unknown-kernel", "There is no such kernel."
    UNKNOWN_PROCESS = "unknown-process", "The kernel has no such process."
    NOT_STUCK = "not-stuck", "The process is not stuck."
    OUT_OF_REACH = (
        "out-of-reach",
        "The process cannot be told for certain, or is not the controller's to end.",
    )
    NO_LEDGER = "no-ledger", "There is no history that could be read."
    # Of a move
    BUSY = "busy", "The GPU is at work for the kernel."
    NOTHING_TO_MOVE = "nothing-to-move", "The kernel has no GPU memory that could be moved."
    NOT_PARKABLE = "not-parkable", "Nothing of the kernel can be moved."
    OLDER_KERNEL = (
        "older-kernel",
        "It was started before an upgrade: it is not managed until it is restarted.",
    )
    OLDER_CONTROLLER = (
        "older-controller",
        "The controller was started before an upgrade: the kernel is not managed until that is restarted.",
    )
    NO_HOST_MEMORY = "no-host-memory", "Host memory is short."
    NO_GPU_ROOM = "no-gpu-room", "The GPU is full."
    TOO_LATE = "too-late", "The kernel did not react in time."
    FAILED = "failed", "The driver refused."
    REFUSED = "refused", "The kernel refused."
    LOST = "lost", "The kernel's GPU state is lost."
    KERNEL_ENDED = "kernel-ended", "The kernel has ended."
    PARK_ASKED = "park-asked", "A park was asked for since."
    CANCELLED = "cancelled", "The kernel was interrupted."
    WAITS_FOR_GPU = "waits-for-gpu", "A CUDA call of the kernel waits for the GPU."


# Why a kernel stays that should have been parked: the reasons for an alert or a look; the rest is everyday.
PARK_REFUSALS = (
    Refusal.NO_HOST_MEMORY,
    Refusal.NOT_PARKABLE,
    Refusal.BUSY,
    Refusal.FAILED,
    Refusal.TOO_LATE,
)
EVERYDAY_REFUSALS = (Refusal.BUSY, Refusal.NOTHING_TO_MOVE, Refusal.TOO_LATE)


class NoticeKind(Reason):
    """What a notice is about."""

    MADE_ROOM = (
        "made-room",
        "A kernel's memory went to the host for another kernel, or because memory was low.",
    )
    MOVED = "moved", "A kernel resumed on another GPU."
    REFUSED = "refused", "A kernel stays on the GPU although others wait."
    NO_ROOM = "no-room", "An allocation fails, and waiting would not help."
    RESUME_FAILED = "resume-failed", "A kernel's memory could not be brought back yet."
    STUCK = "stuck", "A process makes no progress and may be ended."
    ENDED = "ended", "A kernel's server shuts it down for a kernel that waits."
    MEMORY_LOW = "memory-low", "A GPU's memory is low."
    HOST_MEMORY_LOW = "host-memory-low", "The machine's memory is low."


class StuckReason(Reason):
    """Why a process cannot make progress any more."""

    LOST = "lost", "Its GPU state is lost."
    RESUME_FAILED = "resume-failed", "Its memory could not be brought back, again and again."
    GPU_GONE = "gpu-gone", "The GPU that its memory belongs to is gone."
    GPU_TOO_SMALL = "gpu-too-small", "Its memory cannot fit on the GPU any more."
    PEER_GONE = "peer-gone", "A CUDA call waits for a process of the kernel that is gone."
    PARENT_GONE = "parent-gone", "The process that started it has ended, and it does nothing."
    STOPPED = "stopped", "It is stopped and holds memory."


class Cause(Reason):
    """Why something was decided, or why a kernel's residency changed last."""

    OTHER = "other", "None of the others."
    ASKED = "asked", "The user, or a program for the user, asked for it."
    ROOM = "room", "Park: another kernel waits for the memory."
    LOW_MEMORY = "low-memory", "Park: the GPU is under its low watermark."
    IDLE = "idle", "Park: the kernel was idle and the policy parks all idle kernels."
    TIME_SLICE = "time-slice", "Park: its time slice is over and others wait."
    LIMIT = "limit", "Park: its user or group has more on the GPUs than they may. Deny: it would have."
    FULL = "full", "End: the GPU is full of busy kernels and this is the newest."
    CELL = "cell", "Resume: a CUDA call waited."
    SPLIT = "split", "Resume: the kernel's other processes are on the GPU."
    UNDONE = "undone", "Resume: the kernel's other processes could not be parked."
    PREFETCH = "prefetch", "Resume: the user is about to use the kernel, and there was room."
    FAILED = "failed", "Its memory could not be brought back yet, and stays parked."
    TOO_LARGE = "too-large", "Deny: the allocation cannot fit, whatever is parked."
    FAILED_AGAIN = "failed-again", "Deny: the allocation failed again and again although there was room."


class WaitReason(Reason):
    """Why a kernel waits for the GPU."""

    TURN = "turn", "There is room, and the kernel is served next."
    FULL = "full", "The GPU is full until kernels on it have been idle for long enough."
    COMPUTING = "computing", "The GPU is full, and kernels on it are at work."
    COMPUTE = "compute", "As many kernels compute on the GPU as `max_computing_per_gpu` allows."
    HELD = "held", "A user keeps a kernel on the GPU whose memory it needs."
    HOST_MEMORY = "host-memory", "Kernels could be parked, and host memory for them is short."
    MOVING = "moving", "Memory is being freed for it, or it is being brought back."
    LIMIT = "limit", "The limit of its user or group has no room for it."
    TOO_LARGE = "too-large", "It needs more than can become free, whatever is parked."
    STARTING = "starting", "The controller has just started and does not know every kernel yet."
    RETRY = "retry", "It failed, or was offered room in vain, and is tried again in a moment."
    OTHERS_FIRST = "others-first", "Others wait before it."
    OUTSIDE = "outside", "Programs that are not managed have the memory that it needs."
    ENDING = "ending", "Its server shuts it down for another kernel."


class DepthRefusal(Reason):
    """Why a kernel's CUDA context stays on the GPU when it is parked."""

    NOT_ASKED = (
        "not-asked",
        "Its process was started without AFFINODE_DEPTH=context, or its driver cannot do it.",
    )
    SEVERAL_PROCESSES = "several-processes", "Several of its processes use CUDA."
    SEVERAL_GPUS = "several-gpus", "It uses several GPUs."
    NOT_SEEN = "not-seen", "NVML does not tell which processes use the GPU, or does not show this one yet."
    UNMANAGED = "unmanaged", "A process without a shim uses the GPU."
    FAILED = "failed", "The shim or the driver refused."


class BlockerReason(Reason):
    """Why the memory that a waiter needs is not free."""

    COMPUTING = "computing", "The kernel is at work."
    HELD = "held", "Its user keeps it on the GPU."
    IDLE = "idle", "It is idle, and may be parked when it has been for long enough."
    OPTED_OUT = "opted-out", "It is never parked, or cannot be."
    MOVING = "moving", "Its memory is on its way."
    OUTSIDE = "outside", "Programs that are not managed."
