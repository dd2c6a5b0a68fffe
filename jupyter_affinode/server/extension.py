"""The Jupyter Server extension: connects the parts and has their configuration."""

from __future__ import annotations

import os
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from tornado.ioloop import PeriodicCallback
from traitlets import Bool

from .._version import __version__
from ..provisioning.default import OURS, DefaultProvisioner, claim_default
from ..provisioning.provisioner import AffinodeProvisioner
from ..settings.policy import Settings
from ..settings.traits import traits_of, values_of
from .activity import MARK_S, GpuActivity
from .controller_watch import NodeWatch
from .events import ResidencyEvents
from .evictions import KernelEnds
from .grant_renewal import GrantRenewal
from .handlers import HANDLERS
from .kernels import KERNEL_ACTIONS, ServerKernels
from .metrics import MetricsListener

SHARED = (
    " None leaves what the controller has. All servers of a user share one controller: the server that starts last "
    "decides. On a controller of all users of the machine this setting has no effect."
)


class AffinodeExtension(
    traits_of(Settings, may_be_unset=True, note=SHARED),  # type: ignore[misc]  # made of the declarations
    ExtensionApp,
):
    """Frees the GPUs of idle kernels and gets them back; follows this server's kernels for the machine's controller."""

    name = "jupyter_affinode"
    version = __version__
    description = "Give an idle notebook's GPU back, and get it again with every tensor where it was."

    enabled = Bool(
        True,
        help="""Whether new kernels are managed. Switch it off to see whether a problem is ours: kernels then
        start with the local provisioner and nothing follows them.

        Example: c.AffinodeExtension.enabled = False""",
    ).tag(config=True)
    place_kernels = Bool(
        False,
        help="""Whether new kernels are told which GPU to use, on machines with several: the one with the most room
        once idle kernels are parked comes first in CUDA_VISIBLE_DEVICES, others of the same kind after it. A
        CUDA_VISIBLE_DEVICES of the server or of a kernelspec stays as it is. GPUs are named by number, with
        CUDA_DEVICE_ORDER=PCI_BUS_ID; by UUID where GPUs are used in parts (MIG), where a container has only some of
        the machine's GPUs, or where another CUDA_DEVICE_ORDER is set.""",
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
        policy = {name: value for name, value in values_of(self, Settings).items() if value is not None}
        label = _hubs_name() or self.serverapp.connection_url
        manager = self.serverapp.kernel_manager
        self._grant = GrantRenewal(self.serverapp.runtime_dir, self.log)  # before any part uses the grant
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
        AffinodeProvisioner.depth = policy.get("depth")
        AffinodeProvisioner.places = self.place_kernels
        if self._aside is not None:
            self.watch.code, self.watch.message = self._aside
            self.log.info(self.watch.message)

    @property
    def _aside(self) -> tuple[str, str] | None:
        """Why this server follows nothing, as the watch's code and message; None where it does."""
        assert self.serverapp is not None
        if not self.enabled:
            return "disabled", "jupyter-affinode is switched off on this server (AffinodeExtension.enabled)."
        if self.serverapp.gateway_config.gateway_enabled:
            return "remote", "A kernel gateway starts this server's kernels on another machine."
        return None

    def initialize_handlers(self) -> None:
        """Add the REST API. Called right after `initialize_settings`."""
        self.handlers.extend(HANDLERS)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Begin to follow kernels and controller. Called when the server's loop runs."""
        if self._aside is not None:
            return
        serverapp.event_logger.add_listener(schema_id=KERNEL_ACTIONS, listener=self.kernels.on_kernel_action)
        self._follows = True
        self._grant.start()
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
            await self._grant.stop()
            await self.kernels.stop()
            await self.watch.stop()


def _hubs_name() -> str:
    """Return a JupyterHub's name for this server, "alice/" or "alice/NAME"; "" if no Hub started it."""
    user = os.environ.get("JUPYTERHUB_USER", "")
    return user and f"{user}/{os.environ.get('JUPYTERHUB_SERVER_NAME', '')}"
