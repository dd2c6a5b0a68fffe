"""`jupyter affinode node`: the controller as a program; its settings are declared in `jupyter_affinode/settings`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, NoReturn

from jupyter_core.application import JupyterApp
from traitlets import default
from traitlets.config.loader import KVArgParseConfigLoader

from .. import environment
from .._version import __version__
from ..printable import printable
from ..settings.controller import ControllerSettings
from ..settings.declaration import SettingsRefused
from ..settings.policy import NOT_FOR_MANY_USERS, Settings
from ..settings.traits import options_of, traits_of, values_of
from . import simulation
from .api.remote import serve_remote
from .api.server import serve
from .controller import LINK_NAME, Controller
from .identity.access import Access, NoSuchGroup, access_for
from .identity.grants import GrantsUnavailable
from .leadership import handover
from .leadership.election import LOCK_NAME, AlreadyServed, Election
from .metrics.history_options import HistoryOptions
from .metrics.server import serve_metrics
from .system.closing import let_closes_be_interrupted
from .system.service_manager import ServiceManager

YOUNG_MAX = 50_000  # objects before the garbage collector looks; a pass makes some ten thousand, and drops them itself
ENDS_S = 10.0  # what ending takes beside that
LOG_NAME = "node.log"
LOG_BYTES_MAX = 4 * 1024 * 1024
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname).1s %(message)s"
_ALIASES, _FLAGS = options_of("NodeController", ControllerSettings, Settings)


class PrintableFormatter(logging.Formatter):
    """Writes one line for each message, whatever texts of users are in it; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class CommandLine(KVArgParseConfigLoader):
    """Reads the options; errors in them are reported in one line, without pages of usage."""

    def _create_parser(self) -> None:
        super()._create_parser()
        self.parser.error = self._refuse  # type: ignore[method-assign]

    def _refuse(self, message: str) -> NoReturn:
        print(f"jupyter affinode node: {message}. Help: jupyter affinode node --help", file=sys.stderr)
        sys.exit(2)


class NodeController(
    traits_of(ControllerSettings),  # type: ignore[misc]  # made of the declarations
    traits_of(Settings),  # type: ignore[misc]
    JupyterApp,
):
    """The controller of this machine's GPUs.

    Configured by `c.NodeController` in jupyter_affinode_config.py or by the command line; started by itself when a
    kernel needs it.
    """

    name = "jupyter-affinode"
    version = __version__
    description = """Watch the kernels that use this machine's GPUs, park the idle, resume them on use.

    Started by itself when a kernel needs it, and ended by itself when none does. One serves each socket; a
    second one says which controller serves and ends with status 0.
    """
    examples = """
    jupyter affinode node                                    # this user's controller, in the foreground
    jupyter affinode node --park-when=idle --idle-timeout=60 # free every GPU a minute after its last use
    jupyter affinode node --system --admin-group=staff       # all users of the machine; as root
    """

    aliases = {  # noqa: RUF012  # as the base class has it
        "log-level": "Application.log_level",
        "config": "JupyterApp.config_file",
        **_ALIASES,
    }
    flags = {  # noqa: RUF012
        "debug": ({"Application": {"log_level": logging.DEBUG}}, "Log more."),
        **_FLAGS,
    }

    @default("socket")
    def _default_socket(self) -> str:
        if self.system:
            return os.environ.get(environment.SOCKET) or str(environment.NODE_SOCKET)
        return str(environment.socket_path())

    @default("grant_audiences")
    def _default_audiences(self) -> list[str]:
        return [f"affinode:{socket.gethostname()}"]

    @default("kernelspec_opt_out")
    def _default_kernelspec_opt_out(self) -> bool:
        return not self.system

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    def _create_loader(self, argv: Any, aliases: Any, flags: Any, classes: Any) -> KVArgParseConfigLoader:
        return CommandLine(argv, aliases, flags, classes=classes, log=self.log)

    def migrate_config(self) -> None:
        """Skip migration: IPython never had settings of ours, and a full disk keeps no controller from starting."""

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]  # as JupyterApp
        """Refuse to start on an invalid configuration: it says which users may enter."""
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

    def start(self) -> None:
        """Serve until no kernel needs the controller; `launch_instance` calls it."""
        super().start()
        _raise_descriptor_limit()
        try:
            own = ControllerSettings(**values_of(self, ControllerSettings))
            settings = Settings().changed(**values_of(self, Settings))
            path = Path(own.socket).absolute()
            if (
                max(len(os.fsencode(each)) for each in (path, path.with_name(LINK_NAME)))
                > environment.SOCKET_PATH_MAX
            ):
                raise OSError(f"the path of the socket is too long: {path}")
            access = access_for(own)
            if own.system:
                if settings.depth == "context":
                    raise SettingsRefused(NOT_FOR_MANY_USERS)
                _prepare_for_all_users(path)
                election = Election(path, path.parent, is_machines=True)
            else:
                if handover.gives_way(path):
                    raise AlreadyServed(environment.NODE_SOCKET.with_name(LOCK_NAME))
                if os.getuid() == 0 or not path.parent.exists() or os.stat(path.parent).st_uid != 0:
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
            status = asyncio.run(_serve(path, own, settings, access, election, log))
        finally:
            logging.shutdown()
        self.exit(status)


def _prepare_for_all_users(path: Path) -> None:
    """Make a folder that every user may enter and only ours may change."""
    os.umask(0o077)  # of what lies in it, only the sockets are for all users
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o755, parents=True)
        path.parent.chmod(0o755)
    environment.verify_owned(path.parent)


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as the system lets us have: each process of a kernel takes three."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(
    path: Path,
    own: ControllerSettings,
    settings: Settings,
    access: Access,
    election: Election,
    log: logging.Logger,
) -> int:
    """Run a controller until it is finished or told to end; return its exit status."""
    controller = Controller(
        path,
        settings,
        version=__version__,
        log=log,
        election=election,
        access=access,
        history=HistoryOptions.of(own, path),
        machine_name=own.machine_name,
    )
    tcp_servers = []
    if own.metrics_port:
        tcp_servers.append(serve_metrics(controller.metrics, own.metrics_ip, own.metrics_port, log))
    if own.api_port:
        tcp_servers.append(serve_remote(controller, own.api_ip, own.api_port))
    loop, manager = asyncio.get_running_loop(), ServiceManager()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told_to_end, controller, manager, signal.Signals(number))
    let_closes_be_interrupted()
    _spare_passes()
    server = serve(controller)
    controller.start()  # right after: what waits for the API's socket needs the link, too
    manager.ready()
    log.info("controller %s, process %d, serves %s", __version__, os.getpid(), path)
    log.info("settings: %s", ", ".join(f"{name}={value}" for name, value in settings.as_dict().items()))
    try:
        await controller.finished.wait()
    finally:
        manager.stopping()
        server.stop()
        for tcp_server in filter(None, tcp_servers):
            tcp_server.stop()
        if controller.exit_status != 4:  # else they are not ours any more
            path.unlink(missing_ok=True)
            path.with_name(LINK_NAME).unlink(missing_ok=True)
        controller.close()
        await server.close_all_connections()
        controller.closing.stop()
        election.close()
        log.info("controller, process %d, ended", os.getpid())
    return controller.exit_status


def _spare_passes() -> None:
    """Have cycles looked for after many new objects, not after 700 as by default, and never among modules' objects.

    A pass makes its snapshot of all kernels anew and hardly a cycle. A tenth of the time of `decide()` for a thousand
    kernels was the collector's, and each of its looks at everything took ten times as long as the decision.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)
    gc.enable()


def _told_to_end(controller: Controller, manager: ServiceManager, number: signal.Signals) -> None:
    controller.log.info("%s: the controller ends; kernels resume by themselves", number.name)
    within_s = controller.state.settings.hibernate_at_end_s
    if number is signal.SIGTERM and within_s and manager.may_shut_down():
        manager.ends_within(within_s + ENDS_S)
        controller.begin_end()
    else:
        controller.finished.set()


def _node_log(path: Path, level: Any) -> logging.Logger:
    """Return the log: the file, and stderr unless that is the same file or closed."""
    log = logging.getLogger("affinode.node")
    log.setLevel(level)
    log.propagate = False
    handlers: list[logging.Handler] = []
    with contextlib.suppress(OSError):  # the controller serves without a log if the disk is full
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
    simulation.start_over()
    return NodeController.launch_instance(argv)
