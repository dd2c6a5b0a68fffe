"""The Jupyter Server extension: connects the parts and has their configuration."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, CaselessStrEnum, Float, Integer, Unicode, default, validate

from .._version import __version__
from ..environment import (
    HIBERNATE_DIR,
    KEEP_KERNELS,
    KEEP_KERNELS_FOR_S,
    KEEP_KERNELS_MEMORY,
    KEEP_KERNELS_PER_USER,
)
from ..provisioning.default import OURS, DefaultProvisioner, claim_default
from ..provisioning.provisioner import AffinodeProvisioner
from ..settings.keeping import KEEP_FOR_S, KEPT, KeepLimits, checked_size
from ..settings.policy import Settings
from ..settings.traits import traits_of, values_of
from ..units import size_in_bytes
from .activity import MARK_S, GpuActivity
from .controller_watch import NodeWatch
from .events import ResidencyEvents
from .evictions import ControllerWishes
from .grant_renewal import GrantRenewal
from .handlers import HANDLERS
from .kept_kernels import ImageSettings, KeptKernels, Limits
from .kernels import KERNEL_ACTIONS, ServerKernels
from .metrics import MetricsListener
from .suspension import Suspension
from .warm_kernels import WarmKernels

SHARED = (
    " None leaves what the controller has. All servers of a user share one controller: the server that starts last "
    "decides. On a controller of all users of the machine this setting has no effect."
)


class AffinodeExtension(
    traits_of(Settings, may_be_unset=True, note=SHARED),  # type: ignore[misc]  # made of the declarations
    KeepLimits,
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

    keep_kernels = CaselessStrEnum(
        KEPT,
        default_value="never",
        help="""Which kernels outlive this server when a signal ends it (a Hub's culler, an upgrade, `jupyter server
        stop`, a crash): none; those whose GPU memory can be parked, or that have none; all; or, where all
        processes end with the server, as in a batch job or a container, those that can hibernate before it ends: cells
        that run are interrupted for that. The next server of the same user, name and root folder has them again, with
        their notebooks and the output that came meanwhile. An end from JupyterLab's menu ends all kernels. Only kernels
        that our provisioner starts are kept. Their own standard output, beside the notebook's, is dropped if it would
        go to a pipe or terminal. Default: $AFFINODE_KEEP_KERNELS, which a Hub's spawner sets, or "never".""",
    ).tag(config=True)
    hibernate_dir = Unicode(
        help="""A folder of the user's own, on a disk, for images of kernels that hibernate: process and GPU memory on
        disk, and nothing in host memory. A kernel hibernates when its user asks for it, or after `hibernate_after_s`,
        and wakes when its notebook is used. Images outlive the machine's restart. Empty: kernels do not hibernate.
        Needs CRIU, and KernelManager.transport "tcp"; `jupyter affinode doctor` says whether it works here. Default:
        $AFFINODE_HIBERNATE_DIR.""",
    ).tag(config=True)
    hibernate_after_s = Float(
        0.0,
        min=0.0,
        help="""For how many seconds a kernel must be idle and parked, or idle and without a server, before it
        hibernates; 0: only when that is asked for, where host memory is short, and at the machine's end.""",
    ).tag(config=True)
    images_for_s = Float(
        30 * 86400.0,
        min=0.0,
        help="""After how many seconds the image of a hibernated kernel is deleted, a day after the keeper's log said
        so; 0: never.""",
    ).tag(config=True)
    images_limit = Unicode(
        "",
        help="""How much the images of a user's hibernated kernels may take on disk together, as "200GiB"; empty: any.
        A kernel whose image would be beyond that is not hibernated, and goes on.""",
    ).tag(config=True)
    images_spare = Unicode(
        "256MiB",
        help="""How much of the disk of `hibernate_dir` images leave free. Where users share a disk, this bounds the
        images of all.""",
    ).tag(config=True)

    warm_kernels = Bool(
        True,
        help="""Whether kernels of warm kernelspecs (`jupyter affinode warm add`) are made before a notebook wants one,
        and taken then. Where no kernelspec is warm, nothing is made. Switched off, such kernels start as others, and
        run their prelude.""",
    ).tag(config=True)
    warm_for_s = Float(
        3600.0,
        min=0.0,
        help="""For how many seconds warm kernels stay that no server of the user wants any more, and that no program
        has asked for.""",
    ).tag(config=True)
    warm_per_user = Integer(
        4,
        min=0,
        help="""How many warm kernels a user has at a time, of all kernelspecs together; 0: as many as these say.""",
    ).tag(config=True)
    warm_memory = Unicode(
        "",
        help="""How much host memory the processes of a user's warm kernels may have together, as "32GiB", parked GPU
        memory included; empty: any. Where one more would be beyond that, it is not made.""",
    ).tag(config=True)

    warm_prelude_s = Float(
        1800.0,
        min=1.0,
        help="""For how many seconds the prelude of a warm kernel may run. One that does not end would keep a user's
        other warm kernels from being made: it is ended, and counts as a prelude that failed.""",
    ).tag(config=True)

    _follows = False  # whether kernels and controller are followed
    default_provisioner = DefaultProvisioner("local-provisioner", "the extension has not been loaded")

    @default("keep_kernels")
    def _keep_kernels_default(self) -> str:
        told = os.environ.get(KEEP_KERNELS, "never")
        return told if told in KEPT else "never"

    @default("keep_kernels_for_s")
    def _keep_kernels_for_s_default(self) -> float:
        try:
            return max(float(os.environ.get(KEEP_KERNELS_FOR_S, "")), 1.0)
        except ValueError:
            return KEEP_FOR_S

    @default("keep_kernels_per_user")
    def _keep_kernels_per_user_default(self) -> int:
        told = os.environ.get(KEEP_KERNELS_PER_USER, "")
        return int(told) if told.isdecimal() else 0

    @default("keep_kernels_memory")
    def _keep_kernels_memory_default(self) -> str:
        return os.environ.get(KEEP_KERNELS_MEMORY, "")

    @validate("warm_memory", "images_limit", "images_spare")
    def _check_size(self, proposal: Any) -> str:
        return checked_size(proposal)

    @default("hibernate_dir")
    def _hibernate_dir_default(self) -> str:
        return os.environ.get(HIBERNATE_DIR, "")

    @validate("hibernate_dir")
    def _absolute(self, proposal: Any) -> str:
        return str(Path(proposal["value"]).expanduser().absolute()) if proposal["value"] else ""

    def initialize_settings(self) -> None:
        """Make the parts. Called when the server loads the extension, before its loop runs."""
        assert self.serverapp is not None
        self._claim_new_kernels(self.serverapp)
        policy = {name: value for name, value in values_of(self, Settings).items() if value is not None}
        label = _hubs_name() or self.serverapp.connection_url
        depth = "context" if self.hibernate_dir else policy.get("depth")
        self._grant = GrantRenewal(self.serverapp.runtime_dir, self.log)  # before any part uses the grant
        self.watch = NodeWatch(policy=policy, log=self.log)
        self._make_parts_for_all(self.serverapp, label)
        self._tell_provisioners(label, depth)
        self._make_parts_for_keeping(self.serverapp, depth)
        wishes = ControllerWishes(
            self.serverapp.kernel_manager, self.kernels.owns, self.kept.hibernation, self.log
        )
        for listener in (self.kernels, self._events, MetricsListener(self.watch), wishes):
            self.watch.listen(listener)
        if self._aside is None:
            self.kept.begin(self.settings)
        else:
            self.watch.code, self.watch.message = self._aside
            self.log.info(self.watch.message)

    def _claim_new_kernels(self, serverapp: ServerApp) -> None:
        """Have new kernels started by our provisioner, unless the site chose another, and say so."""
        self.default_provisioner = claim_default(serverapp, enabled=self.enabled)
        log = self.log.info if self.default_provisioner.is_ours or not self.enabled else self.log.warning
        log(
            "New kernels are started by %s: %s.%s",
            self.default_provisioner.name,
            self.default_provisioner.reason,
            "" if self.default_provisioner.is_ours else f" Only kernelspecs that name {OURS} are managed.",
        )

    def _make_parts_for_all(self, serverapp: ServerApp, label: str) -> None:
        """Make what follows kernels and the controller. `label` names this server."""
        manager = serverapp.kernel_manager
        self.kernels = ServerKernels(
            manager, serverapp.session_manager, self.watch, server_label=label, log=self.log
        )
        self.activity = GpuActivity(manager, self.watch, serverapp.web_app.settings)
        self._activity_callback = PeriodicCallback(self.activity.mark, MARK_S * 1000)
        assert serverapp.event_logger is not None
        self._events = ResidencyEvents(
            serverapp.event_logger,
            self.watch,
            self.kernels.owns,
            lambda kernel: self.kept.hibernation.seen(kernel),
        )
        self._events.register()
        self._suspension = Suspension(manager.list_kernel_ids, self.watch, self.log)

    def _tell_provisioners(self, label: str, depth: str | None) -> None:
        """Set what provisioners of new kernels do on this server."""
        AffinodeProvisioner.server_label = label
        AffinodeProvisioner.depth = depth
        AffinodeProvisioner.keeps = False  # until the keeper is there
        AffinodeProvisioner.images = self.hibernate_dir
        AffinodeProvisioner.places = self.place_kernels

    def _make_parts_for_keeping(self, serverapp: ServerApp, depth: str | None) -> None:
        """Make what keeps kernels without a server, has them hibernate, and has warm ones made."""
        self.kept = KeptKernels(
            serverapp,
            self.watch,
            Limits(
                self.keep_kernels_for_s,
                self.keep_kernels_per_user,
                size_in_bytes(self.keep_kernels_memory or "0"),
            ),
            which="never" if self._aside is not None else self.keep_kernels,
            images=ImageSettings(
                self.hibernate_dir,
                self.hibernate_after_s,
                self.images_for_s,
                size_in_bytes(self.images_limit or "0"),
                size_in_bytes(self.images_spare or "0"),
            ),
            hibernation_changed=self._hibernation_changed,
            name=_hubs_name(),
            log=self.log,
        )
        settings = self._warm_settings(depth)
        AffinodeProvisioner.warm_settings, AffinodeProvisioner.takes_warm = settings, self.warm_kernels
        self.warm = WarmKernels(serverapp.kernel_manager.kernel_spec_manager, settings, self.log)
        self.kernels.hibernation = self.kept.hibernation.description
        self.kernels.is_away = self.kept.hibernation.is_away
        self.kernels.on_hibernate = self._hibernate_after_cell
        self.kept.open_cells = self.kernels.open_cells

    @property
    def _aside(self) -> tuple[str, str] | None:
        """Why this server follows nothing, as the watch's code and message; None where it does."""
        assert self.serverapp is not None
        if not self.enabled:
            return "disabled", "jupyter-affinode is switched off on this server (AffinodeExtension.enabled)."
        if self.serverapp.gateway_config.gateway_enabled:
            return "remote", "A kernel gateway starts this server's kernels on another machine."
        return None

    def _warm_settings(self, depth: str | None) -> dict[str, Any]:
        """Return how this server's warm kernels are made, and their bounds."""
        return {
            "keep_s": self.warm_for_s,
            "per_user": self.warm_per_user,
            "most_bytes": size_in_bytes(self.warm_memory or "0"),
            "prelude_s": self.warm_prelude_s,
            "depth": depth,
            "hibernate_dir": self.hibernate_dir,
            "hibernate_after_s": self.hibernate_after_s,
            "image_bytes_max": size_in_bytes(self.images_limit or "0"),
            "image_spare_bytes": size_in_bytes(self.images_spare or "0"),
        }

    def _hibernation_changed(self, kernel_id: str) -> None:
        """Have browsers and the controller see a kernel's hibernation as it is now."""
        self._events.hibernation_changed(kernel_id)
        self.kernels.describe(kernel_id)

    def _hibernate_after_cell(self, kernel_id: str) -> None:
        asyncio.get_running_loop().create_task(self.kept.hibernation.hibernate_after_cell(kernel_id))

    def initialize_handlers(self) -> None:
        """Add the REST API. Called right after `initialize_settings`."""
        self.handlers.extend(HANDLERS)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Begin to follow kernels and controller. Called when the server's loop runs."""
        if self._aside is not None:
            return
        for listener in (self.kernels.on_kernel_action, self.kept.on_kernel_action):
            serverapp.event_logger.add_listener(schema_id=KERNEL_ACTIONS, listener=listener)
        self._follows = True
        self._grant.start()
        self.watch.start()
        self.kernels.start()
        await self.kept.start()
        if self.warm_kernels:
            self.warm.start()
        self._activity_callback.start()
        self._suspension.begin()

    async def stop_extension(self) -> None:
        """Stop following. Called when the server stops, before it shuts its kernels down, and also where it only linked
        the extension and never initialised it.
        """
        AffinodeProvisioner.server_label = AffinodeProvisioner.depth = None
        AffinodeProvisioner.images = ""
        AffinodeProvisioner.warm_settings, AffinodeProvisioner.takes_warm = {}, True
        AffinodeProvisioner.places = False
        if self._follows:
            self._activity_callback.stop()
            self._suspension.end()
            await self.kept.begin_end()
            await self.kernels.stop()
            await self.warm.stop()
            await self.kept.stop()
            await self._grant.stop(removes=not self.kept.leaves_kernels)
            await self.watch.stop()


def _hubs_name() -> str:
    """Return a JupyterHub's name for this server, "alice/" or "alice/NAME"; "" if no Hub started it."""
    user = os.environ.get("JUPYTERHUB_USER", "")
    return user and f"{user}/{os.environ.get('JUPYTERHUB_SERVER_NAME', '')}"
