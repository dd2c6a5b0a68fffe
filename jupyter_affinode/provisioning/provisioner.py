"""The kernel provisioner: local kernels whose GPU is managed and that otherwise behave as any local kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import partial, wraps
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from jupyter_client.provisioning import LocalProvisioner

# Not `client.api`: a program's first kernel would wait for its import. And nothing is imported by a thread, since a
# process that is forked meanwhile would wait for that for ever.
from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages, PlacedOn
from ..client.starting import ensure_controller
from ..environment import HIBERNATES, PRELUDE, PRELUDE_FAILED, STAYS
from ..keeping.processes import Adopted, NoProcess, ProcessName, name_of
from ..keeping.warm_spec import WarmSpec, read_spec, warm_section
from ..threads import on_own_thread
from .kernelspec import scheduling_fields
from .preload import Unmanaged, chain_startup, manage
from .shim_sight import lacks_shim
from .visible_gpus import VISIBLE, visible_gpus

# the most that preloading the shim may add to a start; its two trials have 10 s each
PREPARE_TIMEOUT_S = 25.0
PLACE_TIMEOUT_S = 3.0  # the most that choosing a GPU may add to a start
# When a kernel is looked at: what starts it may take a while, and until then it has the shim.
SIGHT_AFTER_S = (5.0, 20.0, 90.0)


class OnDisk(Protocol):
    """What a provisioner asks the server about its kernel, which may live on disk (server/hibernation.py)."""

    @property
    def is_held_back(self) -> bool:
        """Whether it is on disk, or on its way: nothing may reach it."""

    async def lives_on(self) -> bool:
        """Return whether it lives although its process has ended."""

    async def end(self) -> bool:
        """Delete its image, if it has no process, since it is shut down or started anew; return whether that was so."""


class AffinodeProvisioner(LocalProvisioner):
    """Start, signal and end a kernel as the local provisioner does, with the shim preloaded.

    Chosen by the server extension as the default, or by a kernelspec's `metadata.kernel_provisioner`. Works
    wherever jupyter_client does, with or without a Jupyter server. Nothing here may keep a kernel from
    starting, being interrupted or ending: without a controller all is as with the local provisioner.
    """

    # Set by the server extension: what `jupyter affinode status` calls this server; None outside a server.
    server_label: ClassVar[str | None] = None
    # Set by the server extension: "context" if its kernels may give up their CUDA context too.
    depth: ClassVar[str | None] = None
    # Set by the server extension: whether new kernels are told which GPU to use.
    places: ClassVar[bool] = False
    # Set by the server extension: whether new kernels may outlive their server, or hibernate.
    keeps: ClassVar[bool] = False
    # Set by the server extension: where images of hibernated kernels are; "": new kernels do not hibernate.
    images: ClassVar[str] = ""

    # Set by the server extension: how warm kernels are made and bounded (keeping/warm_pools.py).
    warm_settings: ClassVar[dict[str, Any]] = {}
    takes_warm = True  # whether a warm kernel is taken where the kernelspec has some

    _warm: WarmSpec | None = None
    _environ_before: dict[str, str] | None = (
        None  # as the kernel's server has it, before the kernelspec's and ours
    )
    outlives_server = False  # whether the kernel that runs now does
    managed = False  # whether the shim is in the kernel that runs now
    on_disk: OnDisk | None = None  # set by the server extension, for a kernel that may hibernate
    _said_dying = False
    _is_forgotten = False  # the controller was told that the kernel is gone

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Preload the shim.

        Called by `KernelManager.pre_start_kernel()` at each start and restart; after `super()`, since that
        applies the kernelspec's own `env`.
        """
        self._environ_before = dict(kwargs.get("env") or os.environ)
        kwargs = await super().pre_launch(**kwargs)
        self._warm = self._warm_spec()
        self.outlives_server = self.keeps
        if self.keeps:
            kwargs.update(independent=True, **_lasting_output())
            kwargs["env"] = {**kwargs["env"], STAYS: "1"}
            if (self.kernel_spec.language or "").lower().startswith("python"):
                chain_startup(
                    kwargs["env"]
                )  # also of a kernel that is not managed: it stays (kernel/staying.py)
        self._said_dying = self._is_forgotten = False
        self.managed = False
        _report_interrupts(self.parent)
        if self._warm is not None and self._warm.prelude:  # also of a kernel that is not managed
            kwargs["env"] = {**kwargs["env"], PRELUDE: self._warm.prelude}
            chain_startup(kwargs["env"])
        env = dict(kwargs["env"])  # a preparation that fails, or goes on after its time-out, changes nothing
        language = (self.kernel_spec.language or "").lower()
        prepare = partial(
            manage,
            env,
            self.kernel_id,
            kwargs["cmd"],
            python=language.startswith("python"),
            server=self.server_label is not None,
            depth=self.depth,
        )
        if self.keeps and self.images:
            env[HIBERNATES] = _hold_file(self.images, self.kernel_id)
        try:
            await on_own_thread(prepare, timeout_s=PREPARE_TIMEOUT_S)
            await self._place(env)
        except Unmanaged as reason:
            self._log_unmanaged(str(reason))
        except asyncio.TimeoutError:
            self._log_unmanaged(f"its preparation took more than {PREPARE_TIMEOUT_S:g} s")
        except Exception:  # the kernel starts all the same, as it would without this package
            self.log.exception("The GPU of kernel %s is not managed: its preparation failed.", self.kernel_id)
        else:
            kwargs["env"] = env
            self.managed = True
        return kwargs

    def _warm_spec(self) -> WarmSpec | None:
        """Return what the kernelspec says of warm kernels; None if nothing, or nothing that can be used."""
        if warm_section(self.kernel_spec.metadata) is None or not self.kernel_spec.resource_dir:
            return None
        try:
            return read_spec(os.path.realpath(self.kernel_spec.resource_dir))
        except ValueError as error:
            self.log.warning("Kernel %s is no warm one: %s", self.kernel_id, error)
            return None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Take a warm kernel, if the kernelspec has some and one is ready; start one otherwise.

        Called by `KernelManager.start_kernel()`, also at a restart.
        """
        if self._warm is None or not self.takes_warm or self._warm.count == 0:
            return await super().launch_kernel(cmd, **kwargs)
        from .taking import Launch, Taken, take  # what a kernel that is not warm need not wait for

        cwd = str(kwargs.get("cwd") or os.getcwd())
        launch = Launch(
            cmd,
            kwargs["env"],
            cwd,
            dict(self.connection_info),
            getattr(self.parent, "connection_file", ""),
            bool(kwargs.get("independent")),
        )
        found = await take(warm_want(self._warm, self._environ_before or {}, self.warm_settings), launch)
        if not isinstance(found, Taken):
            self.log.info(
                "No warm kernel of %s for kernel %s, which is started: %s.",
                self._warm.name,
                self.kernel_id,
                found.why,
            )
            if found.failed is not None:  # it would fail again, after as long a wait
                kwargs["env"] = {**kwargs["env"], PRELUDE_FAILED: found.failed}
                del kwargs["env"][PRELUDE]
            return await super().launch_kernel(cmd, **kwargs)
        self.process = found.process  # type: ignore[assignment]  # as Popen
        self.pid, self.pgid, self.cwd = found.process.pid, found.process_group, cwd
        self.managed = self.managed and found.has_shim
        self.log.info("Kernel %s was ready: it is a warm one of %s.", self.kernel_id, self._warm.name)
        return self.connection_info

    async def post_launch(self, **kwargs: Any) -> None:
        """Introduce the kernel to the controller, on a thread, so that the start does not wait for it.

        Called by `KernelManager.post_start_kernel()`, often inside a loop that stops right afterwards.
        """
        await super().post_launch(**kwargs)
        if self.managed:
            threading.Thread(target=self._introduce, name="affinode-introduce", daemon=True).start()
            self._look_for_shim(self.pid, SIGHT_AFTER_S)

    async def poll(self) -> int | None:
        """Return None while the kernel lives, which it does while it is hibernated, too."""
        status: int | None = await super().poll()
        if status is None or self.on_disk is None or getattr(self.parent, "shutting_down", False):
            return status
        return None if await self.on_disk.lives_on() else status

    def has_left(self, name: ProcessName) -> None:
        """Take the kernel as one that lives on disk: its processes have ended, of which `name` was the kernel's own."""
        process: object = self.process
        if isinstance(process, NoProcess):
            return
        if self.process is not None:
            self.process.wait()  # else its number would stay taken
        self.process = NoProcess(name)  # type: ignore[assignment]  # as Popen

    def has_come_back(self, name: ProcessName) -> None:
        """Watch the kernel's process, which was woken. Raises ProcessLookupError if it has ended."""
        self.process = Adopted(name)  # type: ignore[assignment]  # as Popen

    @property
    def process_name(self) -> ProcessName:
        """The kernel's process, or what it was while the kernel lives on disk. Raises ProcessLookupError."""
        process: object = self.process
        return process.name if isinstance(process, (Adopted, NoProcess)) else name_of(self.pid or 0)

    async def send_signal(self, signum: int) -> None:
        """Send a signal; SIGINT also ends what the kernel's processes wait for at the GPU.

        Called for interrupts (of kernels with `interrupt_mode` "signal") and at the start of a shutdown.
        """
        if self.on_disk is not None and self.on_disk.is_held_back:
            if signum == signal.SIGINT and not getattr(self.parent, "shutting_down", False):
                self.log.info("Kernel %s is hibernated: there is nothing to interrupt.", self.kernel_id)
                return
            if await self.on_disk.end():
                return
        await super().send_signal(signum)
        if signum == signal.SIGINT and self.process:
            if getattr(self.parent, "shutting_down", False):
                self._say_dying()
            else:
                # Not before the caller goes on: it may ask whether a kernel that was just started survived.
                asyncio.get_running_loop().call_soon(
                    self._tell, lambda controller: controller.tell_cancel(self.pgid)
                )

    def interrupt_was_sent(self) -> None:
        """End what the kernel's processes wait for at the GPU, after an interrupt_request.

        jupyter_client sends that to kernels with `interrupt_mode` "message" past `send_signal`. A server with our
        extension follows the kernel's messages, also those of other clients.
        """
        if self.kernel_spec.interrupt_mode == "message" and self.server_label is None:
            self._tell(lambda controller: controller.tell_cancel(self.pgid))

    async def shutdown_requested(self, restart: bool = False) -> None:
        """End waiting calls for good, so that the kernel can answer the shutdown request.

        Called by `KernelManager.request_shutdown()`.
        """
        await super().shutdown_requested(restart=restart)
        if self.on_disk is None or not await self.on_disk.end():
            self._say_dying()

    async def terminate(self, restart: bool = False) -> None:
        """Send SIGTERM, when the kernel did not end by itself. Called by
        `KernelManager.finish_shutdown()`.
        """
        self._say_dying()
        await super().terminate(restart=restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Let the controller forget the kernel, unless it is about to start again.

        Called by `KernelManager.cleanup_resources()`.
        """
        await super().cleanup(restart=restart)
        if not restart:
            self._is_forgotten = True
            self._forget()

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what `load_provisioner_info` takes, as JSON. Raises ProcessLookupError if the kernel has ended."""
        info: dict[str, Any] = await super().get_provisioner_info()
        info["managed"] = self.managed
        info["process"] = asdict(self.process_name)
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Adopt a kernel that another program started, or one that lives on disk. Raises ProcessLookupError if it has
        ended.
        """
        await super().load_provisioner_info(provisioner_info)
        name = ProcessName(**provisioner_info["process"])
        self.process = NoProcess(name) if provisioner_info.get("hibernated") else Adopted(name)  # type: ignore[assignment]  # as Popen
        self.managed, self.outlives_server = provisioner_info["managed"], True
        self.ports_cached = True  # a restart keeps the ports, which open websockets do not follow
        _report_interrupts(self.parent)

    def _forget(self) -> None:
        self._tell(KernelMessages.tell_forget)

    def _say_dying(self) -> None:
        if not self._said_dying:
            self._said_dying = True
            self._tell(lambda controller: controller.tell_dying(self.pgid))

    def _tell(self, message: Callable[[KernelMessages], None]) -> None:
        """Tell the controller something about the kernel, if a controller runs, without waiting.

        A task would outlive the loop of a program without one of its own, and a wait would let a kernel that was just
        started die of an interrupt before `interrupt_kernel` returns.
        """
        if not self.managed:
            return
        try:
            message(KernelMessages(self.kernel_id))
        except ControllerUnavailable as error:
            self.log.debug("Kernel %s: the controller was not told: %s", self.kernel_id, error)

    def _log_unmanaged(self, reason: str) -> None:
        self.log.warning("The GPU of kernel %s is not managed: %s.", self.kernel_id, reason)

    def _look_for_shim(self, pid: int | None, delays_s: tuple[float, ...]) -> None:
        """Say after a while if the kernel lacks the shim. A program whose loop does not run then is not told."""

        def look() -> None:
            if pid is None or self.process is None or self.pid != pid:
                return  # ended, or started again
            connection_file = getattr(self.parent, "connection_file", "")  # in the kernel's command
            if lacks_shim(pid, os.path.basename(connection_file)):
                self.log.warning(
                    "The GPU of kernel %s is not managed: it runs without the shim. Does its kernelspec's command, or"
                    " a script that this runs, change LD_PRELOAD or enter a container?",
                    self.kernel_id,
                )
            else:
                self._look_for_shim(pid, delays_s[1:])

        if delays_s:
            asyncio.get_running_loop().call_later(delays_s[0], look)

    async def _place(self, env: dict[str, str]) -> None:
        """Let the kernel see the GPU with the most room first, unless a GPU was chosen already."""
        if not self.places or VISIBLE in env:
            return

        def ask() -> PlacedOn:
            return KernelMessages(self.kernel_id, ensure_controller()).place()

        try:
            placed = await on_own_thread(ask, timeout_s=PLACE_TIMEOUT_S)
        except (ControllerUnavailable, ControllerRefused, asyncio.TimeoutError, OSError) as error:
            self.log.info("Kernel %s is not placed on a GPU: %r", self.kernel_id, error)
            return
        if placed.uuids:
            env.update(visible_gpus(placed, env))
            self.log.info("Kernel %s is placed on %s.", self.kernel_id, placed.uuids[0])

    def _introduce(self) -> None:
        """Start the controller if none answers, and describe the kernel to it; the body of a thread."""
        spec = self.kernel_spec
        try:
            KernelMessages(self.kernel_id, ensure_controller()).describe(
                name=spec.display_name,
                language=spec.language,
                server=self.server_label,
                **scheduling_fields(spec),
            )
            if (
                self._is_forgotten
            ):  # the kernel has ended meanwhile, and the controller may not have been told
                self._forget()
        except (ControllerUnavailable, ControllerRefused, OSError) as error:
            self.log.warning(
                "Kernel %s runs without a controller, its GPU stays its own: %s", self.kernel_id, error
            )


def warm_want(spec: WarmSpec, environ: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the keeper is told of warm kernels that are wanted (`Keeper.want_warm`)."""
    # the session's own, and none of what a pool's kernels have in common
    environ = {name: value for name, value in environ.items() if not name.startswith("JPY_")}
    return {"spec": spec.folder, "environ": environ, "settings": dict(settings)}


def _lasting_output() -> dict[str, Any]:
    """Return where a kernel's own output goes if it may outlive this server: not into a pipe or terminal that ends."""
    lasting = {}
    for name, number in (("stdout", 1), ("stderr", 2)):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number):
            lasting[name] = subprocess.DEVNULL
    return lasting


def _hold_file(images: str, kernel_id: str) -> str:
    """Return the file that is there while a kernel that hibernates must publish nothing."""
    from ..hibernation.store import image_of  # a kernel that does not hibernate need not wait for this import

    return str(image_of(Path(images), kernel_id).unheard_file)


def _report_interrupts(manager: Any) -> None:
    """Have a kernel manager tell its provisioner, whichever that is by then, of each interrupt that it sent."""
    interrupt = getattr(manager, "interrupt_kernel", None)
    if interrupt is None or hasattr(interrupt, "reports"):
        return

    def report() -> None:
        if isinstance(manager.provisioner, AffinodeProvisioner):
            manager.provisioner.interrupt_was_sent()

    async def report_after(sent: Awaitable[Any]) -> None:
        await sent
        report()

    @wraps(interrupt)
    def interrupt_and_report(*args: Any, **kwargs: Any) -> Any:
        on_disk = getattr(manager.provisioner, "on_disk", None)
        if on_disk is not None and on_disk.is_held_back:  # a message would interrupt its next cell
            return manager.provisioner.send_signal(signal.SIGINT)
        sent = interrupt(*args, **kwargs)
        return report_after(sent) if isawaitable(sent) else report()

    interrupt_and_report.reports = True  # type: ignore[attr-defined]
    manager.interrupt_kernel = interrupt_and_report
