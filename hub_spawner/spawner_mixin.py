"""What a spawn does about GPU memory: the mixin that `enable` puts before the site's spawner class."""

from __future__ import annotations

import html
import math
import os
from collections.abc import AsyncIterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from jupyter_core.paths import ENV_JUPYTER_PATH, SYSTEM_JUPYTER_PATH
from traitlets import Bool, CaselessStrEnum, Float, Integer, List, TraitError, Unicode, default, validate
from traitlets.config import Configurable

from jupyter_affinode import environment
from jupyter_affinode.client.api import ControllerUnavailable
from jupyter_affinode.settings.keeping import KEPT, KeepLimits, checked_size
from jupyter_affinode.units import bytes_in_words, ordinal, sentence, size_in_bytes

from . import grants
from .free_room import as_html, free_room_line
from .nodes import Nodes
from .places import kernels_may_stay, starts_here
from .room import Answer, ask_for_room
from .story import Closable, Event, Story
from .warm_kernels import warm_kernels_line

XLA_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
SIMULATION = (
    *(environment.SIM, environment.SOCKET, environment.SIM_DIR),
    *(environment.SIM_MEMORY, environment.SIM_GPUS, environment.SIM_COPY_RATE),
)

_Configurable: Any = Configurable  # what else is there comes with the spawner that it is mixed into


class GpuPolicy(KeepLimits, _Configurable):  # type: ignore[misc]
    """Makes room on the GPU before a server starts, tells the user how that stands, and names the server's user to
    the controller.

    It reserves nothing, and a server starts without room unless `on_gpu_full` says otherwise. Derived from
    `Configurable`, since JupyterHub demands `start`, `stop` and `poll` of each class that derives from `Spawner`.
    """

    gpu_memory = Unicode(
        "",
        help="""How much GPU memory a server probably needs, as `"20GiB"`. Idle kernels of all users are parked until
        that much is free on one GPU; then the server starts. Empty: nothing is asked for. Set it per group or profile:

            c.JupyterHub.load_groups = {"vision": {"users": ["ana"], "properties": {}}}
            c.Spawner.group_overrides = {"vision": {"groups": {"vision"}, "spawner_override": {"gpu_memory": "20GiB"}}}
        """,
    ).tag(config=True)
    gpu_priority = Integer(
        0,
        min=-5,
        max=5,
        help="""The class in which the request, and with grants the server's kernels, wait; higher goes first.""",
    ).tag(config=True)
    gpu_wait_s = Float(
        10.0,
        min=0.0,
        max=600.0,
        help="""How many seconds a server waits for room at the most. The spawn page tells its user why. Each
        server that waits takes one of `c.JupyterHub.concurrent_spawn_limit`.""",
    ).tag(config=True)
    on_gpu_full = CaselessStrEnum(
        ["start", "refuse"],
        default_value="start",
        help="""What happens after `gpu_wait_s`: `"start"`, and the first cell that uses the GPU waits, or
        `"refuse"`, and the user is told to try again later. Where no controller answers servers start all the same.
        Pods are never refused: the node that they will go to is not known before.""",
    ).tag(config=True)
    gpu_socket = Unicode(
        "",
        help="""The API socket of the machine's controller, where it is not /run/affinode/node.sock. Servers get it as
        AFFINODE_SOCKET.""",
    ).tag(config=True)
    gpu_room_at = Unicode(
        "",
        help="""Where room is asked for before a server starts: `"here"`, the controller of the Hub's machine;
        the path of a controller's socket; `"http://HOST:PORT"`, the controller of one other machine, which
        listens there for the Hub (`api_port`; needs `grant_key`); or `"nowhere"`, and the first cell that uses the GPU
        waits. Empty: here for classes that start servers on the Hub's machine, as LocalProcessSpawner, SystemdSpawner,
        SudoSpawner and DockerSpawner do and classes that derive from them; else nowhere, since the machine is not known
        before. No server is refused for which no room was asked.
        """,
    ).tag(config=True)
    unix_name = Unicode(
        "{username}",
        help="""The Unix user that a Hub's user's server runs as, for example `"jupyter-{username}"`. The user need not
        exist yet. Where grants are signed they name the user.""",
    ).tag(config=True)
    xla_preallocate = Bool(
        False,
        help="""Whether JAX may take three quarters of the GPU at its start. Servers with `gpu_memory` get
        XLA_PYTHON_CLIENT_PREALLOCATE=false unless this is set, or their environment says otherwise.""",
    ).tag(config=True)
    grant_key = Unicode(
        "",
        help="""The file of the private key that signs a server's user (`jupyter affinode grant keys`). Needed
        where a Unix user does not say that: in containers that share one. Empty: no grants.""",
    ).tag(config=True)
    grant_audience = List(
        Unicode(), ["affinode:cluster"], help="The names of the controllers that grants are for."
    ).tag(config=True)
    grant_lifetime_s = Float(
        86400.0,
        min=60.0,
        help="""For how long a grant lets new kernels in; kernels that it let in stay. With `grant_url` an hour is
        enough, since servers renew theirs.""",
    ).tag(config=True)
    grant_url = Unicode(
        "",
        help="""Where servers have their grant renewed: the address of the Hub's service as servers reach it, with
        `/services/affinode/grant` at its end. Empty: a grant is good for `grant_lifetime_s` alone.""",
    ).tag(config=True)

    keep_kernels = CaselessStrEnum(
        KEPT,
        default_value="never",
        help="""Which kernels outlive their server when it is stopped or culled: none; those whose GPU memory can be
        parked, or that have none; all; or those that can hibernate before the server ends, where all processes end
        with it, as in jobs and containers. The user's next server has them again, and tabs that are still open go on.
        For spawners that start plain processes or units, as LocalProcessSpawner, SudoSpawner and SystemdSpawner;
        others' kernels end with the job, container or pod unless they are hibernated. With "parked" a server parks its
        idle kernels when it is stopped.""",
    ).tag(config=True)

    warm_kernelspecs = List(
        Unicode(),
        help="""Folders of kernelspecs of which users' servers keep warm kernels, as the Hub can read them, for example
        the folder of `warm add --from`. The page on which a user chooses a server names them. By default those that the
        Hub's own environment has, where servers start on its machine.""",
    ).tag(config=True)

    gpu_asks_from_hub = True  # False: another program asks, for example an init container
    gpu_starts_servers = True  # False: another spawner does
    _has_asked = False  # for the start that comes next
    _gave_environment = False
    # Of servers, by user and name: kernels that outlive theirs have it. The Hub makes a spawner for each start.
    _kept_tokens: ClassVar[dict[tuple[str, str], str]] = {}

    @default("will_resume")
    def _default_will_resume(self) -> bool:
        """Have the Hub keep what tabs that are open identify themselves with, and the server's token, which its kernels
        have in their environment and the keeper asks with: when the server is stopped, and when it crashed.
        """
        return self.gpu_keeps_kernels()

    @default("warm_kernelspecs")
    def _default_warm_kernelspecs(self) -> list[str]:
        return (
            [f"{path}/kernels" for path in (*ENV_JUPYTER_PATH, *SYSTEM_JUPYTER_PATH)]
            if self.gpu_starts_here()
            else []
        )

    @validate("gpu_memory")
    def _check_size(self, proposal: Any) -> str:
        return checked_size(proposal)

    @validate("gpu_room_at")
    def _check_gpu_room_at(self, proposal: Any) -> str:
        place = str(proposal["value"])
        if place not in ("", "here", "nowhere") and not place.startswith(("/", "http://")):
            raise TraitError(
                f"gpu_room_at is {place!r}; write 'here', 'nowhere', a socket's path, or 'http://HOST:PORT'"
            )
        return place

    @cached_property
    def _story(self) -> Story:
        return Story()

    @property
    def gpu_story(self) -> list[Event]:
        """What the spawn page was told so far."""
        return self._story.events

    def gpu_tell(self, text: str) -> None:
        """Tell the spawn page, each tab of it."""
        self._story.tell(text)

    def gpu_bytes(self) -> int:
        """Return how many bytes are to be asked for; 0: none."""
        return size_in_bytes(self.gpu_memory) if self.gpu_memory else 0

    @property
    def gpu_user(self) -> str:
        """The server's user, as the machine's controller knows its kernels."""
        name = str(self.user.name)
        return f"hub:{name}" if self.grant_key else self.unix_name.format(username=name)

    # ---- called by the Hub

    async def run_pre_spawn_hook(self) -> None:
        """Run the site's own hook, which may raise, and then make room."""
        self._story.begin()
        done = super().run_pre_spawn_hook()
        if done is not None:
            from jupyterhub.utils import maybe_future

            await maybe_future(done)
        self._has_asked = True
        if self.gpu_asks_from_hub and self.gpu_memory:
            await self.gpu_make_room()

    async def start(self) -> Any:
        """Start the server as the spawner does, and return what it returns.

        The Hub runs no pre-spawn hook of a spawner that another one made: that one asks for room here, for at most half
        of the time that the Hub gives it.
        """
        has_asked, self._has_asked, self._gave_environment = self._has_asked, False, False
        if not has_asked and self.gpu_asks_from_hub and self.gpu_memory:
            self._story.begin()
            await self.gpu_make_room(self.start_timeout / 2)
        self._story.end()
        from jupyterhub.utils import maybe_future

        if self.gpu_keeps_kernels():
            self._take_token_again()
        started = await maybe_future(super().start())
        if self.gpu_keeps_kernels():
            self._kept_tokens[self.user.name, self.name] = str(self.api_token)
        if self.gpu_starts_servers and not self._gave_environment:
            self.log.warning(
                "the server of %s was started without the GPU policy's environment, which %s did not ask for."
                " If another spawner starts it, call hub_spawner.enable with that one's class",
                self.user.name,
                type(self).__name__,
            )
        return started

    async def progress(self) -> AsyncIterator[Event]:
        """Yield how the request for room stands, and then the spawner's own progress."""
        async for event in self._story.follow():
            yield event
        async for event in super().progress():
            yield event

    def _generate_progress(self) -> Closable:
        """Return what the Hub streams to a spawn page; called by the Hub for each viewer."""
        return Closable(super()._generate_progress())

    def get_env(self) -> dict[str, str]:
        """Add variables that name the kernels' user and the controller's socket; the site's own variables stay."""
        self._gave_environment = True
        env: dict[str, str] = super().get_env()
        for name, value in self.gpu_environment().items():
            env.setdefault(name, value)
        return env

    async def get_options_form(self) -> Any:
        """Put lines about free room and warm kernels before the form on which a user chooses a server, where there is
        one.
        """
        form = await super().get_options_form()
        if not form:
            return form
        room = as_html(await free_room_line(self.gpu_nodes(), self.gpu_bytes()))
        return room + as_html(warm_kernels_line(self.warm_kernelspecs), "warm-kernels") + form

    # ---- the policy

    def gpu_starts_here(self) -> bool:
        """Return whether the server certainly starts on the Hub's machine."""
        return starts_here(type(self))

    def gpu_keeps_kernels(self) -> bool:
        """Return whether kernels of the server may outlive it."""
        return self.keep_kernels == "hibernated" or (
            self.keep_kernels != "never" and kernels_may_stay(type(self))
        )

    def _take_token_again(self) -> None:
        """Give the server the token of the one before it; without one, remove those that earlier servers left."""
        from jupyterhub import orm

        kept = self._kept_tokens.pop((self.user.name, self.name), "")
        if orm.APIToken.find(self.db, kept) is not None:
            self.api_token = kept
            return
        mine = orm.APIToken.find(self.db, self.api_token)
        for token in list(self.user.orm_user.api_tokens) if mine is not None else []:
            if token is not mine and (token.note, token.client_id) == (mine.note, mine.client_id):
                self.db.delete(token)

    def gpu_nodes(self) -> Nodes:
        """Return the machines on which the server may start, as far as they are known."""
        place = self.gpu_room_at or ("here" if self.gpu_starts_here() else "nowhere")
        if place == "nowhere":
            return Nodes({})
        return Nodes({"": self.gpu_socket if place == "here" else place}, self.grant_key)

    async def gpu_make_room(self, at_most_s: float = math.inf) -> None:
        """Ask for room and tell how that stands. Raises the refusal where `on_gpu_full` wants it, and nothing else."""
        nodes, size = self.gpu_nodes(), self.gpu_bytes()
        if not nodes:
            self.log.debug("no GPU room is asked for before the server of %s starts", self.user.name)
            return
        try:
            answer = await ask_for_room(
                await nodes.first(),
                size,
                user=self.gpu_user,
                priority=self.gpu_priority,
                timeout_s=min(self.gpu_wait_s, at_most_s),
                tell=self._tell_line,
            )
        except ControllerUnavailable as error:
            answer = Answer("unanswered", str(error))
        except Exception:  # no error here may keep the user's server from starting
            self.log.exception("asking for GPU room for %s failed; the server starts", self.user.name)
            return
        if answer.state == "unanswered":
            self.log.warning(
                "no GPU room was asked for: %s; the server of %s starts", answer.text, self.user.name
            )
        elif answer.state == "done":
            self.gpu_tell(sentence(answer.text))
        elif answer.code in ("timeout", "too-large", "limit") and self._refuses():
            self._refuse(answer)
        else:
            place = f", {ordinal(answer.place)} in line" if answer.place else ""
            self.gpu_tell(f"{sentence(answer.text)}. Your server starts; its first GPU cell waits{place}")

    def gpu_grant(self) -> str | None:
        """Return a new grant for the server; None if the site signs none, or signing failed (the log has the error)."""
        if not self.grant_key:
            return None
        try:
            return grants.sign(
                Path(self.grant_key),
                self.grant_audience,
                user=str(self.user.name),
                server=str(self.name),
                groups=[group.name for group in self.user.groups],  # as the Hub has them
                priority=self.gpu_priority,
                token=str(self.api_token),
                lifetime_s=self.grant_lifetime_s,
            )
        except Exception:  # a missing key must not keep servers from starting
            self.log.exception("%s gets no grant, and starts without GPU management", self.user.name)
            return None

    def gpu_environment(self) -> dict[str, str]:
        """Return the variables that a server's environment gets."""
        env: dict[str, str] = {}
        grant = self.gpu_grant()
        if grant is not None:
            env[environment.GRANT] = grant
            if self.grant_url:
                env[environment.GRANT_URL] = self.grant_url
        if self.gpu_memory and not self.xla_preallocate:
            env[XLA_PREALLOCATE] = "false"
        if self.gpu_socket:
            env[environment.SOCKET] = self.gpu_socket
        if self.gpu_keeps_kernels():
            env[environment.KEEP_KERNELS] = self.keep_kernels
            env[environment.KEEP_KERNELS_FOR_S] = str(self.keep_kernels_for_s)
            env[environment.KEEP_KERNELS_PER_USER] = str(self.keep_kernels_per_user)
            env[environment.KEEP_KERNELS_MEMORY] = self.keep_kernels_memory
        if environment.simulation_asked():
            env.update(_simulation())
        return env

    def _tell_line(self, line: dict[str, Any]) -> None:
        if line["text"]:
            place = f" ({ordinal(line['place'])} of {line['waiting']} in line)" if line["waiting"] > 1 else ""
            self.gpu_tell(f"{sentence(line['text'])}{place}")

    def _refuses(self) -> bool:
        """Return whether the site wants refusals, and a refusal does not end the Hub."""
        if self.on_gpu_full != "refuse":
            return False
        if self.consecutive_failure_limit and not has_spawn_exception():
            self.log.warning(
                "on_gpu_full='refuse' is not heeded: this JupyterHub counts refusals as failures, and ends after %d",
                self.consecutive_failure_limit,
            )
            return False
        return True

    def _refuse(self, answer: Answer) -> None:
        """Raise the refusal, in words that the page and the API show."""
        size = bytes_in_words(self.gpu_bytes())
        text = f"No GPU has room for {size} at the moment: {answer.text}. Try again later."
        self.log.info("the server of %s is refused: %s", self.user.name, answer.code)
        raise _refusal(text)


def _refusal(text: str) -> Exception:
    """Return the error that ends a spawn: JupyterHub 6 does not count it towards `consecutive_failure_limit`."""
    error: Any
    if has_spawn_exception():
        from jupyterhub.spawner import SpawnException

        error = SpawnException(text, reason="gpu_full", status_code=503)
    else:
        from tornado.web import HTTPError

        error = HTTPError(503, "%s", text)
    # JupyterHub 6.1 shows nothing else on the page of a spawn that failed after its first second.
    error.jupyterhub_message, error.jupyterhub_html_message = text, f"<p>{html.escape(text)}</p>"
    return error  # type: ignore[no-any-return]


def has_spawn_exception() -> bool:
    """Return whether this JupyterHub has an error that ends a spawn and is not counted as a failure."""
    from jupyterhub import spawner

    return hasattr(spawner, "SpawnException")


def _simulation() -> dict[str, str]:
    """Return what kernels of a simulated machine need, which the Hub does not hand on by itself."""
    return {name: os.environ[name] for name in SIMULATION if os.environ.get(name)}
