"""The settings of the queue, of limits and of priorities as traits of the node controller."""

from __future__ import annotations

from traitlets import Bool, Enum, Float, HasTraits, Int, Unicode, default

from ..model.settings import Settings

_DEFAULTS = Settings()
_RULES = """ Written "alice=VALUE, hub:bob=VALUE, *=VALUE": alice is a user (or group) of this machine, hub:bob one
        that a grant names, as JupyterHub's are; * is everybody who is not named."""

QUEUE_ALIASES = {
    "hold-kernels-max": "NodeController.hold_kernels_max",
    "hold-bytes-max": "NodeController.hold_bytes_max",
    "when-full": "NodeController.when_full",
    "quantum": "NodeController.quantum_s",
    "end-after": "NodeController.end_after_s",
    "resume-elsewhere": "NodeController.resume_elsewhere",
    "backfill": "NodeController.backfill",
    "ageing": "NodeController.ageing_s",
    "user-priorities": "NodeController.user_priorities",
    "group-priorities": "NodeController.group_priorities",
    "user-limits": "NodeController.user_limits",
    "group-limits": "NodeController.group_limits",
    "opt-out": "NodeController.opt_out",
    "kernelspec-opt-out": "NodeController.kernelspec_opt_out",
}


class QueueTraits(HasTraits):
    """Mixed into `app.NodeController`."""

    system: bool  # of app_access.AccessTraits

    hold_kernels_max = Int(
        None,
        allow_none=True,
        min=0,
        help="""How many kernels one user may hold at a time. Set it where people keep GPUs "just in case".
        Default: as many as they like, each for `hold_max_s`.""",
    ).tag(config=True)
    hold_bytes_max = Int(
        None,
        allow_none=True,
        min=0,
        help="How many bytes of GPU memory one user may hold at a time, all their held kernels together.",
    ).tag(config=True)
    when_full = Enum(
        ["wait", "time_slice", "terminate_newest"],
        default_value=_DEFAULTS.when_full,
        help="""What happens when someone waits and every kernel on the GPU is busy. "wait": they wait until one
        is idle. "time_slice": who has had the GPU longest gives it up after `quantum_s`, at its next call of
        CUDA, and waits in turn; choose it where cells compute for hours and others must get on. Kernels of
        several processes or GPUs are never preempted. "terminate_newest": the youngest kernel is shut down for
        an older one by its own Jupyter server, which tells its person; all its variables are lost. Choose
        that only where people expect it.""",
    ).tag(config=True)
    quantum_s = Float(
        _DEFAULTS.quantum_s,
        min=0,
        help="""time_slice: seconds that a kernel keeps the GPU at least while others wait. Raise it where
        moving takes long: a kernel of 80 GiB needs some three seconds to go and come back.""",
    ).tag(config=True)
    end_after_s = Float(
        _DEFAULTS.end_after_s,
        min=0,
        help="terminate_newest: seconds that somebody must have waited before a kernel is shut down for them.",
    ).tag(config=True)
    resume_elsewhere = Bool(
        _DEFAULTS.resume_elsewhere,
        help="""Let a kernel that was parked with `depth="context"`, and whose GPU is full when it is needed again,
        come back on another GPU of the same kind. It goes only where CUDA_VISIBLE_DEVICES lets it, as that was
        when its process began. Turn it off where it matters on which GPU a kernel is.""",
    ).tag(config=True)
    backfill = Bool(
        _DEFAULTS.backfill,
        help="""Let who waits behind others go first where room is left that cannot help those ahead, whoever
        yields. Raises use of the GPU where kernels differ much in size.""",
    ).tag(config=True)
    ageing_s = Float(
        _DEFAULTS.ageing_s,
        min=0,
        help="""Seconds of waiting that are worth one priority class: with classes from -5 to 5 nobody is
        overtaken by who comes more than ten times that later. 0: classes make no difference.""",
    ).tag(config=True)
    user_priorities = Unicode(
        _DEFAULTS.user_priorities, help="Priority classes of users, from -5 to 5; 0 if not named." + _RULES
    ).tag(config=True)
    group_priorities = Unicode(
        _DEFAULTS.group_priorities,
        help="The same for groups; the highest of a user's groups counts, unless the user is named." + _RULES,
    ).tag(config=True)
    user_limits = Unicode(
        _DEFAULTS.user_limits,
        help="""How much GPU memory the kernels of one user may have on all GPUs together; beyond it their idle
        kernels are parked and their others wait. Example: "alice=80GiB, *=40GiB"."""
        + _RULES,
    ).tag(config=True)
    group_limits = Unicode(
        _DEFAULTS.group_limits, help="The same for all users of a group together." + _RULES
    ).tag(config=True)
    opt_out = Unicode(
        _DEFAULTS.opt_out,
        help="""Whose kernels are never parked but by their own wish: "alice, @staff, hub:bob, @hub:ml", where @ marks
        groups and hub: users and groups that a grant names; or * for everybody.""",
    ).tag(config=True)
    kernelspec_opt_out = Bool(
        help="""Whether a kernelspec may say the same of its kernels, by `"metadata": {"affinode": {"park":
        false}}`. By default not with --system: people write kernelspecs of their own, and holds have quotas.""",
    ).tag(config=True)

    @default("kernelspec_opt_out")
    def _default_kernelspec_opt_out(self) -> bool:
        return _DEFAULTS.kernelspec_opt_out and not self.system
