"""The Jupyter Server extension: it only wires the parts together and carries their configuration."""

from __future__ import annotations

from typing import Any

from jupyter_server.extension.application import ExtensionApp
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Enum, Float, Integer, Unicode

from .._version import __version__
from ..provisioning.default import OURS, DefaultProvisioner, claim_default
from ..provisioning.provisioner import AffinodeProvisioner
from .activity import MARK_S, GpuActivity
from .controller_watch import NodeWatch
from .events import ResidencyEvents
from .evictions import KernelEnds
from .handlers import HANDLERS
from .kernels import KERNEL_ACTIONS, ServerKernels
from .metrics import MetricsListener

POLICY = (
    "park_when",
    "depth",
    "idle_timeout_s",
    "cell_idle_timeout_s",
    "low_watermark",
    "high_watermark",
    "min_footprint_bytes",
    "host_reserve_bytes",
    "lot_bytes",
    "drop_caches_before_park",
    "hold_default_s",
    "hold_max_s",
    "when_full",
    "quantum_s",
)
SHARED = (
    " None leaves what the controller has. All servers of a person (or of the machine) share one: the server "
    "that starts last decides. The machine's own controller has its administrators' settings, whatever is said here."
)


class AffinodeExtension(ExtensionApp):
    """Gives idle kernels' GPUs back and gets them again; follows this server's kernels for the node's
    controller.
    """

    name = "jupyter_affinode"
    version = __version__
    description = "Give an idle notebook's GPU back, and get it again with every tensor where it was."

    enabled = Bool(
        True,
        help="""Whether new kernels are managed. Switch it off to see whether a problem is ours: kernels then
        start with the local provisioner and nothing follows them.

        Example: c.AffinodeExtension.enabled = False""",
    ).tag(config=True)
    park_when = Enum(
        ["needed", "idle"],
        default_value=None,
        allow_none=True,
        help="""When an idle kernel's GPU memory is moved to host memory: "needed", when another kernel waits
        for room or free GPU memory falls under the low watermark; "idle", as soon as it is idle for long, on
        machines whose GPUs are also used by others or are to be switched off."""
        + SHARED,
    ).tag(config=True)
    depth = Enum(
        ["memory", "context"],
        default_value=None,
        allow_none=True,
        help="""What a parked kernel leaves on the GPU: "memory", its CUDA context (about 0.6 GiB); "context",
        nothing, where kernel and GPU allow it. Kernels that this server starts from then on are prepared for
        it. Choose it where many kernels share a GPU and the contexts add up."""
        + SHARED,
    ).tag(config=True)
    idle_timeout_s = Float(
        None, allow_none=True, help="Seconds without CUDA after which a kernel may be parked." + SHARED
    ).tag(config=True)
    cell_idle_timeout_s = Float(
        None,
        allow_none=True,
        help="The same while a cell is open: for cells that wait for a person or a network." + SHARED,
    ).tag(config=True)
    low_watermark = Float(
        None,
        allow_none=True,
        help="Fraction of a GPU's memory; with less of it free, idle kernels yield." + SHARED,
    ).tag(config=True)
    high_watermark = Float(
        None, allow_none=True, help="Fraction of a GPU's memory to have free again after that." + SHARED
    ).tag(config=True)
    min_footprint_bytes = Integer(
        None, allow_none=True, help="Kernels with less GPU memory than this are left alone." + SHARED
    ).tag(config=True)
    host_reserve_bytes = Integer(
        None,
        allow_none=True,
        help="Host memory that parking never takes; raise it where other programs need memory suddenly."
        + SHARED,
    ).tag(config=True)
    lot_bytes = Integer(
        None,
        allow_none=True,
        help="Host memory that is touched in advance, so that first parks are fast; taken while nobody parks too."
        + SHARED,
    ).tag(config=True)
    drop_caches_before_park = Bool(
        None,
        allow_none=True,
        help="Whether PyTorch and CuPy are asked to drop what they only cache before an idle kernel is parked."
        + SHARED,
    ).tag(config=True)
    hold_default_s = Float(
        None, allow_none=True, help="How long %gpu_hold without a duration keeps the GPU." + SHARED
    ).tag(config=True)
    hold_max_s = Float(
        None, allow_none=True, help="The longest that anyone may keep an idle GPU." + SHARED
    ).tag(config=True)
    place_kernels = Bool(
        False,
        help="""Whether new kernels are told which GPU to use, on machines with several: the one with the most room
        once idle kernels are parked comes first in CUDA_VISIBLE_DEVICES, others of the same kind after it. A
        CUDA_VISIBLE_DEVICES of the server or of a kernelspec stays as it is.""",
    ).tag(config=True)
    when_full = Enum(
        ["wait", "time_slice", "terminate_newest"],
        default_value=None,
        allow_none=True,
        help="""What happens when someone waits and every kernel on the GPU is busy: "wait"; "time_slice", who has
        had it longest gives it up at its next call, after `quantum_s`, and takes turns; "terminate_newest",
        the youngest kernel is shut down for an older one, with all its variables. Choose the last only where
        people expect it."""
        + SHARED,
    ).tag(config=True)
    quantum_s = Float(
        None,
        allow_none=True,
        help="Seconds that a kernel has the GPU at least when turns are taken." + SHARED,
    ).tag(config=True)
    server_label = Unicode(
        help="""What `jupyter affinode status` calls this server; by default its address.

        Example: c.AffinodeExtension.server_label = "alice's lab" """,
    ).tag(config=True)

    _follows = False  # whether kernels and controller are followed
    default_provisioner = DefaultProvisioner("local-provisioner", "the extension has not been loaded")

    def initialize_settings(self) -> None:
        """Make the parts. Called when the server loads the extension, before its loop runs."""
        assert self.serverapp is not None
        self.default_provisioner = claim_default(self.serverapp, enabled=self.enabled)
        log = self.log.info if self.default_provisioner.is_ours or not self.enabled else self.log.warning
        log(
            "New kernels are started by %s: %s.%s",
            self.default_provisioner.name,
            self.default_provisioner.reason,
            "" if self.default_provisioner.is_ours else f" Only kernelspecs that name {OURS} are managed.",
        )
        policy = {name: value for name in POLICY if (value := getattr(self, name)) is not None}
        label = self.server_label or self.serverapp.connection_url
        manager = self.serverapp.kernel_manager
        self.watch = NodeWatch(policy=policy, log=self.log)
        self.kernels = ServerKernels(
            manager, self.serverapp.session_manager, self.watch, server_label=label, log=self.log
        )
        self.activity = GpuActivity(manager, self.watch, self.serverapp.web_app.settings)
        self._activity_callback = PeriodicCallback(self.activity.mark, MARK_S * 1000)
        assert self.serverapp.event_logger is not None
        self._events = ResidencyEvents(self.serverapp.event_logger, self.watch, self.kernels.owns)
        self._events.register()
        ends = KernelEnds(manager, self.kernels.owns, self.log)
        for listener in (self.kernels, self._events, MetricsListener(self.watch), ends):
            self.watch.listen(listener)
        AffinodeProvisioner.server_label = label
        AffinodeProvisioner.depth = self.depth
        AffinodeProvisioner.places = self.place_kernels
        if not self.enabled:
            self.watch.message = (
                "jupyter-affinode is switched off on this server (AffinodeExtension.enabled)."
            )

    def initialize_handlers(self) -> None:
        """Add the REST API. Called right after `initialize_settings`."""
        self.handlers.extend(HANDLERS)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Begin to follow kernels and controller. Called when the server's loop runs."""
        if not self.enabled:
            return
        serverapp.event_logger.add_listener(schema_id=KERNEL_ACTIONS, listener=self.kernels.on_kernel_action)
        self._follows = True
        self.watch.start()
        self.kernels.start()
        self._activity_callback.start()

    async def stop_extension(self) -> None:
        """Stop following. Called when the server stops, before it shuts its kernels down, and also where it only linked
        the extension and never initialised it.
        """
        AffinodeProvisioner.server_label = AffinodeProvisioner.depth = None
        AffinodeProvisioner.places = False
        if self._follows:
            self._activity_callback.stop()
            await self.kernels.stop()
            await self.watch.stop()
