"""The service's pages and actions. Only the Hub's administrators see other users; the ledger names the
administrator of each action."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from http.client import responses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import HTTPError, RequestHandler, authenticated

from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.grant_signing import CannotSign

from ..free_room import free_room
from ..grants import GrantNotGiven, renewed
from ..nodes import ANSWER_WITHIN_S, UNEXPECTED, NodePicture
from . import figures
from . import past as pasts

if TYPE_CHECKING:
    from .app import AffinodeService

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
ADMINS_ONLY = "This page is for the Hub's administrators."
MESSAGE = "affinode-message"
REFRESH_S = 10
AUDIT_SHOWN = 20
PAST_S, DAYS = 3600, "14d"
HOLD_S = 3600.0
LARGEST_NUMBER = 18  # digits of a size

Action = Callable[[ControllerClient, str], Coroutine[Any, Any, Any]]
ACTIONS: dict[str, Action] = {
    "park": lambda client, kernel_id: client.park(kernel_id, wait=False),
    "resume": lambda client, kernel_id: client.resume(kernel_id, wait=False),
    "hold": lambda client, kernel_id: client.hold(kernel_id, HOLD_S),
    "release": lambda client, kernel_id: client.release(kernel_id),
    "end": lambda client, kernel_id: client.shutdown(kernel_id),
}
LABELS = {"park": "Free", "resume": "Get back", "hold": "Keep 1 h", "release": "Stop keeping", "end": "End"}
HISTORY: dict[str, Callable[[ControllerClient], Coroutine[Any, Any, Any]]] = {
    "past": lambda client: client.past(PAST_S),
    "days": lambda client: client.report(by="day", since=DAYS),
    "report": lambda client: client.report(by="user"),
    "audit": lambda client: client.audit(AUDIT_SHOWN),
}
DONE = {
    "park": "is asked to free its GPU",
    "resume": "is asked to get its GPU back",
    "hold": "keeps its GPU for an hour",
    "release": "no longer keeps its GPU",
    "end": "is asked to end",
}


class ServiceHandler(HubOAuthenticated, RequestHandler):  # type: ignore[misc]  # no types
    """What all handlers share: the service's settings, headers, errors as pages."""

    @property
    def service(self) -> AffinodeService:
        """The application."""
        made: AffinodeService = self.settings["service"]
        return made

    def set_default_headers(self) -> None:
        """Add the security headers."""
        for name, value in SECURITY.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Ask the Hub about the user without blocking other requests."""
        await self.hub_auth.get_user(self, sync=False)

    def address(self) -> str:
        """Return the addresses that the request came by, as the proxies report them."""
        return self.request.headers.get("X-Forwarded-For") or self.request.remote_ip or ""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Show an error as a page."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) else None
        if status_code == 403:
            is_forged = "xsrf" in (said or "").lower()
            said = "The form was too old: load the page again." if is_forged else ADMINS_ONLY
        self.render("error.html", status=status_code, reason=responses.get(status_code, ""), said=said or "")


class AdminHandler(ServiceHandler):
    """For the Hub's administrators alone, whatever scopes a site has given to others."""

    async def prepare(self) -> None:
        """Refuse all but administrators; `authenticated` sends a user without a login to the Hub."""
        await super().prepare()
        user = self.current_user
        if user is not None and not user.get("admin"):
            raise HTTPError(403)

    async def client(self, node: str) -> ControllerClient:
        """Return a client for a node, which names the administrator to the controller."""
        name = self.current_user["name"]
        person = {"X-Forwarded-User": f"hub:{name}", "X-Forwarded-For": self.address()}
        headers = {name: _header(value) for name, value in person.items()}
        client = await self.service.machines().client(node, name, headers)
        if client is None:
            raise HTTPError(404, f"there is no node {node[:64]!r} here")
        return client

    def leave_message(self, text: str) -> None:
        """Show a text on the next page."""
        self.set_secure_cookie(
            MESSAGE,
            text[:1000],
            path=self.hub_auth.base_url,
            httponly=True,
            samesite="Strict",
            expires_days=None,
        )

    def take_message(self) -> str:
        """Return the text that was left for this page, once."""
        left = self.get_secure_cookie(MESSAGE)
        if left is None:
            return ""
        self.clear_cookie(MESSAGE, path=self.hub_auth.base_url)
        return left.decode("utf-8", "replace")

    async def attempt(self, act: Callable[[], Coroutine[Any, Any, Any]], done: str) -> None:
        """Do something at a controller, and tell on the next page how that went."""
        try:
            await asyncio.wait_for(act(), ANSWER_WITHIN_S)
            self.leave_message(done)
        except ControllerRefused as refused:
            self.leave_message(f"Refused: {refused}.")
        except ControllerUnavailable as error:
            self.leave_message(f"Not done: {error}.")
        except asyncio.TimeoutError:
            self.leave_message("The controller has not answered yet: look whether it was done.")
        self.redirect(self.hub_auth.base_url, status=303)


class OverviewHandler(AdminHandler):
    """All machines on one page."""

    @authenticated
    async def get(self) -> None:
        """GET /"""
        pictures = await self.service.machines().read()
        answers = await asyncio.gather(*(self._answers(each) for each in pictures))
        refreshes = self.get_query_argument("refresh", "") == "1"
        if refreshes:
            self.set_header("Refresh", str(REFRESH_S))
        self.render(
            "overview.html",
            sections=[self._section(*machine) for machine in zip(pictures, answers, strict=True)],
            message=self.take_message(),
            now=time.strftime("%H:%M:%S", time.gmtime()),
            refreshes=refreshes,
            refresh_s=REFRESH_S,
        )

    async def _answers(self, picture: NodePicture) -> dict[str, tuple[Any, str]]:
        """Return what the machine's ledger says, one after the other: a controller reads one report of a user at a
        time.
        """
        return {name: await self._asked(picture, ask) for name, ask in HISTORY.items()}

    def _section(self, picture: NodePicture, answers: dict[str, tuple[Any, str]]) -> bytes:
        """Return one machine's part of the page; an answer of an unexpected shape costs no other machine its part."""
        try:
            return self._rendered(picture, answers)
        except Exception:  # it may have any shape
            self.service.log.exception("the answer of %s cannot be shown", picture.name)
            nothing = dict.fromkeys(HISTORY, (None, ""))
            return self._rendered(NodePicture(picture.name, problem=UNEXPECTED), nothing)

    def _rendered(self, picture: NodePicture, answers: dict[str, tuple[Any, str]]) -> bytes:
        return self.render_string(
            "machine.html",
            figures=figures,
            labels=LABELS,
            pasts=pasts,
            picture=picture,
            **{name: answer for name, (answer, _) in answers.items()},
            **{f"no_{name}": why for name, (_, why) in answers.items()},
        )

    async def _asked(
        self, picture: NodePicture, ask: Callable[[ControllerClient], Coroutine[Any, Any, Any]]
    ) -> tuple[Any, str]:
        """Return the answer of a controller that is there, or why there is none."""
        if picture.node is None:
            return None, ""
        try:
            client = await self.client(picture.name)
            return await asyncio.wait_for(ask(client), ANSWER_WITHIN_S), ""
        except asyncio.TimeoutError:
            return None, "the controller did not answer in time"
        except (ControllerRefused, ControllerUnavailable) as error:
            return None, str(error)
        except Exception:  # it may have any shape
            self.service.log.exception("an answer of %s is of no use", picture.name)
            return None, UNEXPECTED


class KernelHandler(AdminHandler):
    """Park, resume, hold or release a kernel, or end one that no server has."""

    @authenticated
    async def post(self) -> None:
        """POST /kernel"""
        node, kernel_id = self.get_body_argument("node"), self.get_body_argument("kernel")
        name, action = self.get_body_argument("name", kernel_id), self.get_body_argument("action")
        if action not in ACTIONS:
            raise HTTPError(400, f"there is no action {action[:64]!r}")
        client = await self.client(node)
        await self.attempt(lambda: ACTIONS[action](client, kernel_id), f"{name} {DONE[action]}.")


class PolicyHandler(AdminHandler):
    """The settings of one machine's controller."""

    @authenticated
    async def get(self) -> None:
        """GET /policy"""
        node = self.get_query_argument("node")
        client = await self.client(node)
        try:
            settings = await asyncio.wait_for(client.policy(), ANSWER_WITHIN_S)
        except (ControllerRefused, ControllerUnavailable, asyncio.TimeoutError) as error:
            raise HTTPError(502, "%s", str(error) or "the controller did not answer in time") from None
        try:
            form = figures.settings_form(settings)
        except Exception:  # it may have any shape
            self.service.log.exception("the settings of %s cannot be shown", node)
            raise HTTPError(502, "%s", UNEXPECTED) from None
        self.render("policy.html", node=node, settings=form)

    @authenticated
    async def post(self) -> None:
        """POST /policy: the settings that the form changes."""
        node = self.get_body_argument("node")
        client = await self.client(node)
        form = {name: self.get_body_argument(name) for name in self.request.body_arguments}

        async def change() -> None:
            before = {
                name.removeprefix("was-"): text for name, text in form.items() if name.startswith("was-")
            }
            # Settings that another administrator changed since the form was shown stay as they are.
            asked = {name: form[name] for name in before if form.get(name, before[name]) != before[name]}
            changes = figures.changed_settings(await client.policy(), asked)
            if changes:
                await client.set_policy(**changes)

        try:
            await self.attempt(change, f"The policy of {node} is set.")
        except ValueError as refused:
            self.leave_message(f"Refused: {refused}.")
            self.redirect(self.hub_auth.base_url, status=303)


class TokenHandler(ServiceHandler):
    """For programs that show a token of the Hub's; cookies mean nothing here, so neither do forged forms."""

    async def prepare(self) -> None:
        """Do nothing: `hub_user` asks."""

    def check_xsrf_cookie(self) -> None:
        """Check nothing: a token is in no browser's cookies."""

    async def hub_user(self, *, fresh: bool = False) -> dict[str, Any]:
        """Return the Hub's model of the user or service whose token it is, or 401."""
        token = self.hub_auth.get_token(self, in_cookie=False)
        if token:
            model: dict[str, Any] | None = await self.hub_auth.user_for_token(
                token, use_cache=not fresh, sync=False
            )
            if model is not None:
                return model
        raise HTTPError(401, "this needs a token of the Hub's, in the header Authorization")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with an error as JSON."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) else None
        self.finish({"status": status_code, "message": said or responses.get(status_code, "")})


class RoomHandler(TokenHandler):
    """Free room in totals, for every user of the Hub."""

    async def get(self) -> None:
        """GET /room?bytes=…"""
        await self.hub_user()
        text = self.get_query_argument("bytes", "0")
        if not (text.isascii() and text.isdecimal() and len(text) <= LARGEST_NUMBER):
            raise HTTPError(400, "bytes must be a number")
        room, size = free_room(await self.service.machines().read()), int(text)
        self.finish(
            {
                "text": room.text(size),
                "gpus": len(room.rooms),
                "with_room": room.count(size),
                "waiting": room.waiting,
            }
        )


class GrantHandler(TokenHandler):
    """A new grant for a server that shows its own token and its last grant."""

    async def post(self) -> None:
        """POST /grant, {"grant": the last one}"""
        service = self.service
        if not service.grant_key:
            raise HTTPError(404, "this Hub's service signs no grants")
        model = await self.hub_user(fresh=True)
        try:
            grant = renewed(
                self.last_grant(),
                self.hub_auth.get_token(self, in_cookie=False),
                model,
                Path(service.grant_key),
                service.grant_audience,
                service.grant_lifetime_s,
            )
        except GrantNotGiven as refused:
            raise HTTPError(403, "%s", refused) from None
        except (OSError, CannotSign) as error:
            service.log.error("no grant can be signed: %s", error)
            raise HTTPError(503, "the key that signs grants cannot be read") from None
        self.finish({"grant": grant, "lifetime_s": service.grant_lifetime_s})

    def last_grant(self) -> str:
        """Return the grant in the request. Raises GrantNotGiven."""
        try:
            grant = json.loads(self.request.body)["grant"]
        except (ValueError, LookupError, TypeError, RecursionError):
            grant = None
        if not isinstance(grant, str):
            raise GrantNotGiven("the server's last grant did not come with its token")
        return grant


class UnknownHandler(AdminHandler):
    """Everything else."""

    @authenticated
    async def get(self) -> None:
        """GET anything."""
        raise HTTPError(404)


def handlers(prefix: str) -> list[tuple[Any, ...]]:
    """Return the routes under the service's prefix, which ends with a slash."""
    return [
        (prefix, OverviewHandler),
        (f"{prefix}kernel", KernelHandler),
        (f"{prefix}policy", PolicyHandler),
        (f"{prefix}room", RoomHandler),
        (f"{prefix}grant", GrantHandler),
        (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        (f"{prefix}.*", UnknownHandler),
    ]


def _header(text: str) -> str:
    """Return a text with only those characters that a header may have."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)
