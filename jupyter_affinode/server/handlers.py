"""The REST API of the server extension, `<base_url>affinode/api`: for the panel and the chip.

Reading and moving a kernel's GPU state is authorised as reading and writing kernels is. GETs are polled and
so never count as activity: an open panel must not keep an idle server alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from .._version import __version__
from ..client.api import ControllerRefused, ControllerUnavailable
from ..keeping.client import KeeperRefused, KeeperUnavailable
from ..settings.policy import SETTINGS
from ..time_of_day import clock_in_words
from .controller_watch import Kernel
from .hibernation import Refused

if TYPE_CHECKING:
    from .extension import AffinodeExtension

COMPRESSED_FROM = 1024  # bytes; less is one packet anyway
COMPRESSION = 6
LONGEST_S = 1e12  # of a hold; the controller has its own, shorter limit
ACTIONS = "park|resume|hold|release|focus|end"


class AffinodeHandler(ExtensionHandlerMixin, APIHandler):
    """What the handlers share: the extension's parts and the form of errors, {"error", "message"}."""

    auth_resource = "kernels"

    @property
    def extension(self) -> AffinodeExtension:
        """The running extension."""
        return cast("AffinodeExtension", self.extensionapp)

    def answer(self, value: Any) -> None:
        """Answer with JSON, compressed where the browser takes that."""
        body = json.dumps(value).encode()
        self.set_header("Vary", "Accept-Encoding")
        if len(body) >= COMPRESSED_FROM and "gzip" in self.request.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, COMPRESSION)
            self.set_header("Content-Encoding", "gzip")
        self.finish(body)

    def json_object(self) -> dict[str, Any] | None:
        """Return the request's body; None after an error was answered."""
        try:
            body = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict):
            return body
        self.refuse(400, "bad-request", "The body must be a JSON object; {} will do.")
        return None

    def refuse(self, status: int, slug: str, message: str) -> None:
        """Answer with an error that a user can act on."""
        self.set_status(status)
        self.finish(json.dumps({"error": slug, "message": message}))

    @contextlib.contextmanager
    def controllers_refusals(self) -> Iterator[None]:
        """Answer with the controller's refusal, or with 503 where no controller answers."""
        try:
            yield
        except ControllerUnavailable as error:
            self.refuse(503, "no-controller", str(error))
        except ControllerRefused as error:
            self.refuse(error.status, error.slug, error.message)

    async def may_act(self) -> bool:
        """Return whether the server's authorizer lets the user do more than look."""
        may = self.authorizer.is_authorized(self, self.current_user, "write", self.auth_resource)
        return bool(await ensure_async(may))

    def describe(self, kernel: Kernel) -> Kernel:
        """Return a kernel for the browser: another server's kernels come without their names."""
        own = self.extension.kernels.owns(kernel["id"])
        paths = self.extension.kernels.paths.get(kernel["id"], []) if own else []
        seen = self.extension.kept.hibernation.seen(kernel) if own else {**kernel, "hibernation": None}
        shown = {**seen, "own": own, "paths": paths}
        if own:
            shown["path"] = paths[0] if paths else kernel.get("path")
        else:
            if kernel.get("server") or "/" in kernel["id"]:  # else a program of the same user: its command
                shown["name"] = None
            shown["path"] = None
            shown["processes"] = [{**process, "command": None} for process in kernel.get("processes", [])]
        return shown


class StatusHandler(AffinodeHandler):
    """GET status: the node and all its kernels, asked of the controller now.

    The controller's stream, which the watch follows, has no figures that change by themselves, as idle times and
    free host memory.
    """

    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer 200 also without a controller; `available` and `message` say so then."""
        watch = self.extension.watch
        node, kernels = watch.node, list(watch.kernels.values())
        if watch.available:
            await self.extension.kernels.refresh_paths()
            with contextlib.suppress(ControllerUnavailable, ControllerRefused):  # the watch will see it too
                node, kernels = await asyncio.gather(watch.client.node(), watch.client.kernels())
        warm = [_for_browser(pool) for pool in await self.extension.warm.list_pools()]
        untaken = {each["id"] for pool in warm for each in pool["kernels"]}
        answer = {
            "version": __version__,
            "available": watch.available,
            "message": watch.message,
            "code": watch.code,
            "may_act": await self.may_act(),
            "node": node if watch.available else None,
            "kernels": [self.describe(kernel) for kernel in kernels if kernel["id"] not in untaken]
            if watch.available
            else [],
            "warm": warm,
            "kept": [self._of_today(kept) for kept in await self.extension.kept.list_unseen()],
        }
        self.answer(answer)

    def _of_today(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a kept kernel with the path that its notebook has by now."""
        paths = self.extension.kernels.paths.get(kept["id"])
        return {**kept, "path": paths[0]} if paths else kept


def _for_browser(pool: dict[str, Any]) -> dict[str, Any]:
    """Return what there is of one kernelspec's warm kernels, with moments as times of day."""
    names = ("name", "display_name", "count", "ready", "making", "failed")
    kernels = [
        {
            "id": kernel["id"],
            "since": clock_in_words(kernel["made_at"] - time.time()),
            "bytes": kernel["bytes"],
            "is_on_disk": kernel["place"] == "image",
        }
        for kernel in pool["kernels"]
    ]
    return {
        **{name: pool[name] for name in names},
        "note": pool["note"] or pool["problem"],
        "kernels": kernels,
    }


class KeptKernelHandler(AffinodeHandler):
    """DELETE kept/<id>: shut down a kernel that is kept for another server of this user."""

    @web.authenticated
    @authorized
    async def delete(self, kernel_id: str) -> None:
        """Answer 404 for a kernel that is not kept, also for this server's own: Jupyter's API shuts these down."""
        try:
            await self.extension.kept.end(kernel_id)
        except (KeyError, KeeperRefused):
            self.refuse(404, "not-kept", "No such kernel is kept for another server.")
        except KeeperUnavailable as error:
            self.refuse(503, "no-keeper", str(error))
        else:
            self.set_status(204)
            self.finish()


class KernelHandler(AffinodeHandler):
    """GET kernels/<id>: one kernel, asked of the controller now."""

    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Answer 404 if the controller does not know the kernel, 503 without a controller."""
        with self.controllers_refusals():
            self.answer(self.describe(await self.extension.watch.client.kernel(kernel_id)))


class ActivityHandler(AffinodeHandler):
    """GET kernels/<id>/activity: the CUDA calls of one of this server's kernels; they are counted only while a
    client asks."""

    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Answer 404 for another server's kernel, or if the controller does not know the kernel or the request."""
        if not self.extension.kernels.owns(kernel_id):
            self.refuse(404, "not-here", "This server has no such kernel.")
            return
        with self.controllers_refusals():
            self.answer(await self.extension.watch.client.activity(kernel_id))


class PastHandler(AffinodeHandler):
    """GET past?seconds=3600: where kernels' memory was in the last minutes or hours."""

    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer as the controller does, with another server's kernels without their names."""
        text = self.get_query_argument("seconds", "3600")
        if not (text.isascii() and text.isdecimal()):
            self.refuse(400, "bad-request", "seconds must be a number.")
            return
        with self.controllers_refusals():
            past = await self.extension.watch.client.past(int(text))
            await self.extension.kernels.refresh_paths()
            for gpu in past["gpus"]:
                gpu["lanes"] = [self._lane(lane) for lane in gpu["lanes"]]
            self.answer(past)

    def _lane(self, lane: dict[str, Any]) -> dict[str, Any]:
        kernels = self.extension.kernels
        own = kernels.owns(lane["kernel_id"])
        paths = kernels.paths.get(lane["kernel_id"], []) if own else []
        return {
            **lane,
            "own": own,
            "name": lane["name"] if own else None,
            "path": paths[0] if paths else None,
        }


class KernelActionHandler(AffinodeHandler):
    """POST kernels/<id>/park|resume|hold|release|focus|end: act on one of this server's own kernels.

    `end` ends a stuck process, also of a kernel whose server has ended.
    """

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, action: str) -> None:
        """Answer with the kernel afterwards, or 4xx with the reason of a refusal. park waits until the kernel is
        parked."""
        arguments = self._arguments(action)
        if arguments is None:
            return
        if not self.extension.kernels.owns(kernel_id) and not self._is_orphan(kernel_id, action):
            self.refuse(
                404, "not-here", "This server has no such kernel; act on it from the server it belongs to."
            )
            return
        hibernation = self.extension.kept.hibernation
        if action in ("focus", "resume") and hibernation.is_away(kernel_id):
            hibernation.need(kernel_id)
            self.answer(self.describe(self.extension.watch.kernels.get(kernel_id, {"id": kernel_id})))
            return
        with self.controllers_refusals():
            client = self.extension.watch.client
            kernel = await getattr(client, action)(kernel_id, **arguments)
            if action == "focus":
                kernel = await client.kernel(kernel_id)
            self.answer(self.describe(kernel))

    def _is_orphan(self, kernel_id: str, action: str) -> bool:
        """Return whether the request is about a kernel whose server has ended: its user must be able to end its
        processes."""
        kernel = self.extension.watch.kernels.get(kernel_id, {"processes": []})
        reasons = [(process.get("stuck") or {}).get("reason") for process in kernel["processes"]]
        return action == "end" and "parent-gone" in reasons

    def _arguments(self, action: str) -> dict[str, Any] | None:
        """Return the arguments in the body; None after an error was answered."""
        body = self.json_object()
        if body is None:
            return None
        known = {"hold": {"duration_s"}, "end": {"process"}}.get(action, set())
        unknown = sorted(body.keys() - known)
        if unknown:
            self.refuse(400, "bad-request", f"{action} does not take {', '.join(unknown)}.")
            return None
        if action == "end":
            number = body.get("process")
            if not isinstance(number, int) or isinstance(number, bool):
                self.refuse(
                    400, "bad-request", "process must be the number of one of the kernel's processes."
                )
                return None
            return {"process": number}
        duration_s = body.get("duration_s")
        if duration_s is None:
            return {}
        number = isinstance(duration_s, (int, float)) and not isinstance(duration_s, bool)
        if not number or not 0 < duration_s < LONGEST_S:
            self.refuse(400, "bad-request", "duration_s must be a number of seconds above 0, or null.")
            return None
        return {"duration_s": float(duration_s)}


class HibernationHandler(AffinodeHandler):
    """POST kernels/<id>/hibernate|wake|stay: put one of this server's own kernels on disk, have it run again, or stop
    either."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, action: str) -> None:
        """Answer with the kernel afterwards, once it is there; 409 with the reason if it stays where it was."""
        body = self.json_object()
        if body is None:
            return
        if body:
            self.refuse(400, "bad-request", f"{action} does not take {', '.join(sorted(body))}.")
            return
        if not self.extension.kernels.owns(kernel_id):
            self.refuse(404, "not-here", "This server has no such kernel.")
            return
        hibernation = self.extension.kept.hibernation
        try:
            await {"hibernate": hibernation.hibernate, "wake": hibernation.wake, "stay": hibernation.stop}[
                action
            ](kernel_id)
        except Refused as refused:
            self.refuse(409, "not-hibernated" if action == "hibernate" else "not-woken", str(refused))
            return
        known = self.extension.watch.kernels.get(kernel_id, {"id": kernel_id})
        with contextlib.suppress(
            ControllerUnavailable, ControllerRefused
        ):  # it knows no kernel that uses no GPU
            known = await self.extension.watch.client.kernel(kernel_id)
        self.answer(self.describe(known))


class PolicyHandler(AffinodeHandler):
    """PATCH policy: when idle kernels are parked, on the user's own controller."""

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Answer with all settings afterwards. They last until the controller ends; the next one gets the server's
        configuration."""
        changes = self.json_object()
        if changes is None:
            return
        unknown = sorted(changes.keys() - SETTINGS.keys())
        if unknown:
            self.refuse(400, "bad-setting", f"There is no setting {', '.join(unknown)}.")
            return
        with self.controllers_refusals():
            client, node = self.extension.watch.client, self.extension.watch.node or {}
            if not node.get("policy", {}).get("may_change", node.get("others") is None):
                words = "This machine's controller serves all its users: its administrators set the policy."
                self.refuse(403, "forbidden", words)
                return
            self.answer(await client.set_policy(**changes))


class DoctorHandler(AffinodeHandler):
    """GET doctor: what works here and why not, as `jupyter affinode doctor --json` says it."""

    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Run the checks anew, off the event loop, for a second or two."""
        from ..doctor.checks import report  # else each server's start would pay for what few ask

        server = self.extension.default_provisioner
        checks = await asyncio.get_running_loop().run_in_executor(None, lambda: report(server))
        self.answer(checks)


KERNEL_ID = r"(?P<kernel_id>[^/]{1,64})"

HANDLERS = [
    (r"/affinode/api/status", StatusHandler),
    (rf"/affinode/api/kernels/{KERNEL_ID}", KernelHandler),
    (rf"/affinode/api/kernels/{KERNEL_ID}/(?P<action>{ACTIONS})", KernelActionHandler),
    (rf"/affinode/api/kernels/{KERNEL_ID}/(?P<action>hibernate|wake|stay)", HibernationHandler),
    (rf"/affinode/api/kernels/{KERNEL_ID}/activity", ActivityHandler),
    (rf"/affinode/api/kept/{KERNEL_ID}", KeptKernelHandler),
    (r"/affinode/api/past", PastHandler),
    (r"/affinode/api/policy", PolicyHandler),
    (r"/affinode/api/doctor", DoctorHandler),
]
