"""`jupyter affinode node`: the controller as a program, with its settings as traits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import Bool, Enum, Float, Int, Unicode, default

from .. import environment
from .._version import __version__
from ..printable import printable
from .api.server import serve
from .config.access import ACCESS_ALIASES, ACCESS_FLAGS, AccessTraits, prepare_for_everyone
from .config.history import HISTORY_ALIASES, HistoryTraits
from .config.queue import QUEUE_ALIASES, QueueTraits
from .controller import LINK_NAME, Controller
from .identity.access import Access, NoSuchGroup
from .identity.grants import GrantsUnavailable
from .leadership import handover
from .leadership.election import LOCK_NAME, AlreadyServed, Election
from .metrics.history_options import HistoryOptions
from .metrics.server import serve_metrics
from .model.settings import NOT_FOR_MANY_USERS, Settings, SettingsRefused
from .system.closing import let_closes_be_interrupted
from .system.garbage_collector import spare_passes
from .system.service_manager import ServiceManager

LOG_NAME = "node.log"
LOG_BYTES_MAX = 4 * 1024 * 1024
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname).1s %(message)s"
_DEFAULTS = Settings()


class PrintableFormatter(logging.Formatter):
    """Writes one line for each message, whatever texts of users are in it; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Called by logging."""
        return printable(super().formatMessage(record))


class NodeController(AccessTraits, HistoryTraits, QueueTraits, JupyterApp):
    """The arbiter of this machine's GPUs.

    Configured by `c.NodeController` in jupyter_affinode_config.py or by the command line; started by itself
    when a kernel needs it.
    """

    name = "jupyter-affinode"
    version = __version__
    description = """Watch the kernels that use this machine's GPUs, park the idle, resume them on use.

    Started by itself when a kernel needs it, and ended by itself when none does. One serves each socket; a
    second one says who serves and ends with status 0.
    """
    examples = """
    jupyter affinode node                                    # this user's controller, in the foreground
    jupyter affinode node --park-when=idle --idle-timeout=60 # free every GPU a minute after its last use
    jupyter affinode node --system --admin-group=staff       # all users of the machine; as root
    """

    socket = Unicode(help="Path of the API socket. Default: AFFINODE_SOCKET, or the usual places.").tag(
        config=True
    )
    park_when = Enum(
        ["needed", "idle"],
        default_value=_DEFAULTS.park_when,
        help="""When eligible kernels are parked: "needed", when someone waits for room or free GPU memory
        falls under the low watermark; "idle", as soon as they are eligible. Choose "idle" where programs
        outside Jupyter share the GPU, or where idle machines are scaled down.""",
    ).tag(config=True)
    depth = Enum(
        ["memory", "context"],
        default_value=_DEFAULTS.depth,
        help="""What a parked kernel leaves on the GPU: "memory", its CUDA context (about 0.6 GiB); "context",
        nothing. Taken only for kernels that were started with AFFINODE_DEPTH=context (the extension's setting
        of this name sees to that), that are one process on one GPU, and while every process on that GPU is one
        of ours: the driver loses a process that finds no room on its way back. Needs CUDA 12.8's driver.""",
    ).tag(config=True)
    idle_timeout_s = Float(
        _DEFAULTS.idle_timeout_s,
        min=0,
        help="Seconds after its last use of the GPU from which a kernel without a running cell may go.",
    ).tag(config=True)
    cell_idle_timeout_s = Float(
        _DEFAULTS.cell_idle_timeout_s,
        min=0,
        help="The same for a kernel whose cell runs on without using the GPU.",
    ).tag(config=True)
    queue_idle_timeout_s = Float(
        _DEFAULTS.queue_idle_timeout_s,
        min=0,
        help="""The same while someone waits for the GPU: who thinks between two cells then makes room after so many
        seconds, or as many as parking and resuming it takes, if those are more. Once somebody has waited for a
        third of it, or for twice as long as parking and resuming takes, who has been idle for as long as that takes
        (a second at least) makes room, so that people with short pauses keep nobody out.""",
    ).tag(config=True)
    queue_cell_idle_timeout_s = Float(
        _DEFAULTS.queue_cell_idle_timeout_s,
        min=0,
        help="The same while another kernel waits for the GPU: the cell may hold what that one waits for.",
    ).tag(config=True)
    low_watermark = Float(
        _DEFAULTS.low_watermark,
        min=0,
        max=1,
        help="""Free fraction of a GPU's memory under which eligible kernels are parked though nobody
        waits. 0 to park only for someone.""",
    ).tag(config=True)
    high_watermark = Float(
        _DEFAULTS.high_watermark, min=0, max=1, help="Free fraction up to which they are parked then."
    ).tag(config=True)
    min_footprint_bytes = Int(
        _DEFAULTS.min_footprint_bytes,
        min=0,
        help="Kernels with less movable GPU memory than this are not worth parking; they are left alone.",
    ).tag(config=True)
    margin_bytes = Int(
        _DEFAULTS.margin_bytes,
        min=0,
        help="""GPU memory left free beside what is granted, for what drivers and libraries take unseen. Raise
        it if the log shows grants that fail.""",
    ).tag(config=True)
    host_reserve_bytes = Int(
        None,
        allow_none=True,
        min=0,
        help="""Host memory that parking leaves for everything else, and under which kernels give back what
        they keep for their next park. Default: a tenth of what the machine has at the time, at least 2 GiB,
        at most a quarter.""",
    ).tag(config=True)
    lot_bytes = Int(
        _DEFAULTS.lot_bytes,
        min=0,
        help="""Host memory that the controller touches in advance, in the background, and hands to kernels
        that are parked, beside their own. First parks are several times faster with it, and in Kubernetes
        parked bytes are then charged to the controller's container, not to the person's. The memory is taken
        even while nobody is parked (never of the reserve), so give it what the node can spare. 0: none.
        Huge pages are used where enough of them are set aside (vm.nr_hugepages).""",
    ).tag(config=True)
    drop_caches_before_park = Bool(
        _DEFAULTS.drop_caches_before_park,
        help="""Ask PyTorch and CuPy in an idle IPython kernel to drop what they only cache on the GPU before
        it is parked, so that less is moved and kept in host memory. Off by default: it runs their code in a
        person's process unasked, their statistics change, and the next cells allocate from the driver again
        (some milliseconds a GiB).""",
    ).tag(config=True)
    hold_default_s = Float(
        _DEFAULTS.hold_default_s, min=0, help="How long a kernel is held if the person names no time."
    ).tag(config=True)
    hold_max_s = Float(_DEFAULTS.hold_max_s, min=0, help="How long a kernel can be held at most.").tag(
        config=True
    )
    settle_s = Float(
        _DEFAULTS.settle_s,
        min=0,
        help="Seconds after the start before anything is decided, so that every kernel is known by then.",
    ).tag(config=True)
    keep_alive_s = Float(
        _DEFAULTS.keep_alive_s,
        min=0,
        help="Seconds without any kernel or client after which the controller ends.",
    ).tag(config=True)

    aliases = {  # noqa: RUF012  # as the base class has it
        "log-level": "Application.log_level",
        "config": "JupyterApp.config_file",
        "socket": "NodeController.socket",
        **ACCESS_ALIASES,
        "park-when": "NodeController.park_when",
        "depth": "NodeController.depth",
        "idle-timeout": "NodeController.idle_timeout_s",
        "cell-idle-timeout": "NodeController.cell_idle_timeout_s",
        "queue-idle-timeout": "NodeController.queue_idle_timeout_s",
        "queue-cell-idle-timeout": "NodeController.queue_cell_idle_timeout_s",
        "low-watermark": "NodeController.low_watermark",
        "high-watermark": "NodeController.high_watermark",
        "min-footprint": "NodeController.min_footprint_bytes",
        "margin": "NodeController.margin_bytes",
        "host-reserve": "NodeController.host_reserve_bytes",
        "lots": "NodeController.lot_bytes",
        "drop-caches": "NodeController.drop_caches_before_park",
        "hold-default": "NodeController.hold_default_s",
        "hold-max": "NodeController.hold_max_s",
        **QUEUE_ALIASES,
        **HISTORY_ALIASES,
        "settle": "NodeController.settle_s",
        "keep-alive": "NodeController.keep_alive_s",
    }

    flags = ACCESS_FLAGS

    @default("socket")
    def _default_socket(self) -> str:
        if self.system:
            return os.environ.get(environment.SOCKET) or str(environment.NODE_SOCKET)
        return str(environment.socket_path())

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    def migrate_config(self) -> None:
        """Nothing: IPython never had settings of ours, and a disk that is full keeps nobody from starting."""

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]  # as JupyterApp
        """Everybody's controller does not start with a part of its settings: who may enter is among them."""
        if not self.system:
            return super().load_config_file(suppress_errors)
        self.raise_config_file_errors = True
        try:
            if self.config_file and not os.path.exists(self.config_file):
                raise FileNotFoundError(f"there is no {self.config_file}")
            super().load_config_file(suppress_errors=False)
            unknown = self.config.get("NodeController", {}).keys() - self.trait_names()
            if unknown:
                raise SettingsRefused(f"there is no NodeController.{min(unknown)}")
        except Exception as error:  # whatever the code in it raises
            words = f"{type(error).__name__}: {error}"
            self.log.critical("the controller cannot start: its settings cannot be read: %s", words)
            self.exit(1)

    def policy_settings(self) -> Settings:
        """The traits as settings. Raises SettingsRefused."""
        names = _DEFAULTS.as_dict()
        return _DEFAULTS.changed(**{name: getattr(self, name) for name in names})

    def start(self) -> None:
        """Serve until nobody needs it; called by `launch_instance`."""
        super().start()
        try:
            path = Path(self.socket).absolute()
            if (
                max(len(os.fsencode(each)) for each in (path, path.with_name(LINK_NAME)))
                > environment.SOCKET_PATH_MAX
            ):
                raise OSError(f"the path of the socket is too long: {path}")
            settings = self.policy_settings()
            access = self.access()
            if self.system:
                if settings.depth == "context":
                    raise SettingsRefused(NOT_FOR_MANY_USERS)
                prepare_for_everyone(path)
                election = Election(path, path.parent, is_machines=True)
            else:
                if handover.gives_way(path):
                    raise AlreadyServed(environment.NODE_SOCKET.with_name(LOCK_NAME))
                if not path.parent.exists() or os.stat(path.parent).st_uid == os.getuid():
                    environment.make_folder(path.parent)
                election = Election(path)
            election.win()
        except AlreadyServed as served:
            self.log.info("%s; nothing to do", served)
            self.exit(0)
        except (SettingsRefused, GrantsUnavailable, NoSuchGroup, OSError) as refused:
            self.log.critical("the controller cannot start: %s", refused)
            self.exit(1)
        log = _node_log(path.with_name(LOG_NAME), self.log_level)
        try:
            status = asyncio.run(_serve(path, settings, access, election, log, self.history_options(path)))
        finally:
            logging.shutdown()
        self.exit(status)


async def _serve(
    socket: Path,
    settings: Settings,
    access: Access,
    election: Election,
    log: logging.Logger,
    history: HistoryOptions,
) -> int:
    """Run a controller until it is finished or told to end; its exit status."""
    controller = Controller(
        socket, settings, version=__version__, log=log, election=election, access=access, history=history
    )
    metrics_server = None
    if history.metrics_port:
        metrics_server = serve_metrics(controller.metrics, history.metrics_ip, history.metrics_port, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told_to_end, controller, signal.Signals(number).name)
    let_closes_be_interrupted()
    server = serve(controller)
    spare_passes()
    controller.start()
    manager = ServiceManager()
    manager.ready()
    log.info("controller %s, process %d, serves %s", __version__, os.getpid(), socket)
    log.info("settings: %s", ", ".join(f"{name}={value}" for name, value in settings.as_dict().items()))
    try:
        await controller.finished.wait()
    finally:
        manager.stopping()
        server.stop()
        if metrics_server is not None:
            metrics_server.stop()
        if controller.exit_status != 4:  # else they are not ours any more
            socket.unlink(missing_ok=True)
            socket.with_name(LINK_NAME).unlink(missing_ok=True)
        controller.close()
        await server.close_all_connections()
        controller.closing.stop()
        election.close()
        log.info("controller, process %d, ended", os.getpid())
    return controller.exit_status


def _told_to_end(controller: Controller, name: str) -> None:
    controller.log.info("%s: the controller ends; kernels resume by themselves", name)
    controller.finished.set()


def _node_log(path: Path, level: Any) -> logging.Logger:
    """The log: the file, and stderr unless that is the same file or nobody's."""
    log = logging.getLogger("affinode.node")
    log.setLevel(level)
    log.propagate = False
    handlers: list[logging.Handler] = []
    with contextlib.suppress(OSError):  # a full disk is no reason not to serve
        handlers.append(RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1))
    if not handlers or not _is_stderr(path):
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(PrintableFormatter(LOG_FORMAT, "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
    for name in ("tornado", "asyncio"):
        other = logging.getLogger(name)
        other.propagate = False
        other.handlers[:] = handlers
    return log


def _is_stderr(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), path.stat())
    except (OSError, ValueError, AttributeError):
        return False


def main(argv: list[str] | None = None) -> Any:
    """Run the controller: `jupyter affinode node`, `python -m jupyter_affinode.node`."""
    _use_the_simulated_gpu()
    return NodeController.launch_instance(argv)


def _use_the_simulated_gpu() -> None:
    """With AFFINODE_SIM=1, start over so that the loader, which looks only at the start, finds its NVML."""
    if not environment.simulation_asked():
        return
    try:
        environ = environment.controller_environment()
    except (environment.SimulationRefused, OSError) as refused:
        sys.exit(f"the controller cannot start: {refused}")
    if environ.get("LD_LIBRARY_PATH") != os.environ.get("LD_LIBRARY_PATH"):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
