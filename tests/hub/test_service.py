"""The Hub's page about GPUs, behind a real Hub: administrators see and move all kernels, other users nothing."""

from __future__ import annotations

import asyncio
import base64
import html
import http.server
import itertools
import json
import math
import os
import re
import socketserver
import ssl
import threading
from random import randrange
from types import SimpleNamespace

import jwt
import pytest
import requests
from certipy import Certipy
from gpu_node import ANA, BOB, GIB, gpu_node
from jupyterhub.utils import make_ssl_context
from live_hub import NAVIGATE, TOKEN, Hub, xsrf
from people import make_hub_keys
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from traitlets.config import Config

from hub_spawner.grants import digest
from hub_spawner.service.app import _internal_ssl
from hub_spawner.service.registration import add_service
from jupyter_affinode.client.grant_signing import make_keys, sign_grant
from jupyter_affinode.node.identity.grants import GrantVerifier


@pytest.fixture(scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)])
def version(request):
    """JupyterHub's, each with a machine of its own."""
    return request.param


@pytest.fixture(scope="module")
def node(version):
    """A machine with two GPUs and three users."""
    with gpu_node() as made:
        yield made


class OddController(socketserver.ThreadingUnixStreamServer):
    """Answers each path with what `answers` has for its last word; with nothing where that has none."""

    daemon_threads = True
    answers: dict[str, object]

    class RequestHandlerClass(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            last = self.path.partition("?")[0].rpartition("/")[2]
            answers = self.server.answers
            answer = answers.get(last, b"{")
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self):
            return "here"

        def log_message(self, *_):
            pass


@pytest.fixture(scope="module")
def odd(node):
    """Controllers whose answers have a shape that no page expects: each page tries many."""
    made = []
    for number in range(16):
        server = OddController(str(node.machine.folder / f"odd{number}"), OddController.RequestHandlerClass)
        server.answers = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.append(server)
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def hub(node, version, odd):
    """A Hub with the service."""
    key, _ = make_hub_keys(node.machine.folder)
    nodes = {"gpu1": str(node.machine.socket), "gpu2": "/nowhere/node.sock"}
    nodes |= {f"odd{number}": server.server_address for number, server in enumerate(odd)}
    service = {"nodes": nodes, "grant_key": str(key), "grant_audience": ["tests"]}
    made = Hub(node.machine, version, service=service).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def admin(hub):
    """An administrator's browser."""
    return hub.log_in("admin")


def page(hub, session, path="", **query):
    """A page of the service as a browser opens it."""
    return session.get(f"{hub.url}/services/affinode/{path}", params=query, headers=NAVIGATE, timeout=60)


def act(hub, session, path, **form):
    """Open the page and send a form of it; the page that follows."""
    form.setdefault("_xsrf", xsrf(page(hub, session)))
    return session.post(f"{hub.url}/services/affinode/{path}", data=form, headers=NAVIGATE, timeout=60)


def text_of(answer):
    """A page's words."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def test_an_administrator_sees_all_machines_users_and_kernels(hub, admin):
    answer = page(hub, admin)
    assert answer.status_code == 200, answer.text
    words = text_of(answer)
    for expected in (
        "gpu1",
        "GPU 0, NVIDIA A100-SXM4-80GB",
        "6 GiB of 80 GiB free",
        "work/analysis.ipynb ana/",
        "On the GPU: 40 GiB",
        "GPU freed, 20 GiB safe in RAM",
        "gpu2 No answer: no controller answers at /nowhere/node.sock",
    ):
        assert expected in words
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in answer.text


def test_a_server_that_waits_for_room_is_shown_with_its_user_size_and_age(hub, node, admin, wait_until):
    with node.bob.being():
        waiting = threading.Thread(
            target=node.machine.ask, args=("POST", "/room", {"bytes": 79 * GIB, "timeout_s": 15})
        )
        waiting.start()

    def queue() -> str:
        words = text_of(page(hub, admin))
        return words.partition("Queue")[2].partition("Kernels")[0] if "a server that starts" in words else ""

    words = wait_until(queue)  # of the same page: it waits for some seconds alone
    assert re.search(rf"{BOB} a server that starts, for 79 GiB waits \d", words), words
    waiting.join()


def test_administrators_see_the_last_hour_by_machine_and_its_days(hub, node, admin, wait_until):
    wait_until(lambda: 'class="past"' in page(hub, admin).text)
    answer = page(hub, admin)
    words = text_of(answer)
    hour = words.partition("The last hour")[2].partition("The last 14 days")[0]
    assert re.search(r"of GPUs given back, .* waited", hour), hour
    assert "work/training.ipynb" in hour and f"{BOB}: " in hour
    assert re.search(r'<rect class="(resident|parked|queued)" x="[\d.]+" width="[\d.]+"', answer.text)
    wait_until(lambda: re.search(r"20\d\d-\d\d-\d\d", text_of(page(hub, admin)).partition("14 days")[2]))


def odd_answers(node):
    """Answers of a controller to its requests, of which one or more are of no use."""
    good = {name: node.machine.ask("GET", path)[1] for name, path in (
        ("node", "/node"), ("kernels", "/kernels"), ("report", "/report?by=user"), ("audit", "/audit"),
        ("past", "/past"))}  # fmt: skip
    for name in good:
        yield {**good, name: b"[" * 20_000}
        yield {**good, name: b'{"rows": [' + b"9" * 5000 + b"]}"}
        for odd in (
            None,
            [],
            {},
            "x",
            5,
            [None],
            {"kernels": None},
            {"kernels": [5]},
            {"kernels": [{}]},
            {"rows": 5},
            {"audit": {"a": 1}},
        ):
            yield {**good, name: odd}
    for name in good["node"]:
        for odd in (None, "x", -5, [{}], {"a": []}, math.inf, math.nan, "\ud800"):
            yield {**good, "node": {**good["node"], name: odd}}
    (kernel, *_) = good["kernels"]["kernels"]
    for name in kernel:
        for odd in (None, [], {}, "x", math.inf, -math.inf, "\ud800"):
            yield {**good, "kernels": {"kernels": [{**kernel, name: odd}]}}
    (gpu, *_) = good["node"]["gpus"]
    for name in gpu:
        for odd in (None, "x", math.inf, math.nan):
            yield {**good, "node": {**good["node"], "gpus": [{**gpu, name: odd}]}}
    yield {}


def test_a_controller_with_answers_of_an_unexpected_shape_costs_no_other_machine_its_part(
    hub, node, odd, admin, wait_until
):
    token = hub.ask("POST", "/users/admin/tokens", {})[1]["token"]
    every = 1 if os.environ.get("TEST_STRIDE") else 7
    tried = itertools.islice(list(odd_answers(node)), randrange(every), None, every)
    while batch := list(itertools.islice(tried, len(odd))):
        for server, answers in itertools.zip_longest(odd, batch, fillvalue={}):
            server.answers = answers

        def is_whole(batch=batch):
            answer = page(hub, admin)
            assert answer.status_code == 200, (batch, answer.text)
            words = text_of(answer)
            assert all(f" odd{number} " in words for number in range(len(odd))), words
            return "work/analysis.ipynb ana/" in words

        wait_until(is_whole, message=batch)  # a machine has some seconds for its answer
    for server in odd:
        server.answers = {}

    def gpus():
        url = f"{hub.url}/services/affinode/room"
        room = requests.get(url, headers={"Authorization": f"token {token}"}, timeout=60)
        assert room.status_code == 200
        return room.json()["gpus"]

    wait_until(lambda: gpus() == 2)


@pytest.mark.parametrize(
    ("user", "path"), [("ana", ""), ("ben", ""), ("ben", "policy?node=gpu1"), ("ben", "none")]
)
def test_other_users_get_403(hub, user, path):
    answer = page(hub, hub.log_in(user), path)
    assert answer.status_code == 403
    assert "analysis" not in answer.text


def test_a_user_without_a_login_is_sent_to_the_hub(hub):
    with requests.Session() as session:
        answer = page(hub, session)
    assert "/hub/login" in answer.url


def test_the_ledger_names_the_administrator_who_holds_a_kernel(hub, node, admin, wait_until):
    which = {"node": "gpu1", "kernel": f"uid-{ANA}/analysis"}
    answer = act(hub, admin, "kernel", **which, name="analysis", action="hold")
    assert answer.status_code == 200
    assert "analysis keeps its GPU for an hour." in text_of(answer)
    assert node.kernel(ANA, "analysis")["held_for_s"] > 3000
    assert "analysis keeps" not in text_of(page(hub, admin))  # it is said once
    wait_until(lambda: "hold" in text_of(page(hub, admin)).partition("What administrators did")[2])
    row = node.machine.ask("GET", "/audit")[1]["audit"][0]
    assert (row["actor"], row["action"], row["outcome"]) == ("hub:admin", "hold", "ok")
    assert row["place"].endswith("127.0.0.1")
    assert act(hub, admin, "kernel", **which, action="release").status_code == 200
    assert node.kernel(ANA, "analysis")["held_for_s"] is None


def test_a_kernel_is_parked_and_resumed_from_the_page(hub, node, admin, wait_until):
    which = {"node": "gpu1", "kernel": f"uid-{ANA}/scratch"}
    assert "is asked to free its GPU" in text_of(act(hub, admin, "kernel", **which, action="park"))
    wait_until(lambda: node.kernel(ANA, "scratch")["residency"] == "parked")
    act(hub, admin, "kernel", **which, action="resume")
    wait_until(lambda: node.kernel(ANA, "scratch")["residency"] == "resident")


def test_what_a_controller_refuses_is_said_with_its_reason(hub, admin):
    answer = act(hub, admin, "kernel", node="gpu1", kernel="uid-1/none", action="park")
    assert "Refused: there is no kernel uid-1/none." in text_of(answer)
    answer = act(hub, admin, "kernel", node="gpu2", kernel="x", action="park")
    assert answer.ok and "Not done: no controller answers" in text_of(answer)
    assert act(hub, admin, "kernel", node="gpu1", kernel="x", action="destroy").status_code == 400


def test_a_form_without_the_pages_token_changes_nothing(hub, node, admin):
    answer = act(
        hub, admin, "kernel", node="gpu1", kernel=f"uid-{ANA}/analysis", action="hold", _xsrf="made-up"
    )
    assert answer.status_code == 403
    assert node.kernel(ANA, "analysis")["held_for_s"] is None


def test_the_policy_is_changed_where_the_form_was_and_no_further(hub, node, admin):
    shown = page(hub, admin, "policy", node="gpu1")
    assert shown.status_code == 200
    form = dict(re.findall(r'name="was-([a-z_]+)" value="([^"]*)"', shown.text))
    assert form["park_when"] == "needed" and form["quotas"] == ""
    node.machine.ask("PATCH", "/policy", {"hold_max_s": 7200.0})  # another administrator meanwhile
    fields = form | {f"was-{name}": value for name, value in form.items()}
    answer = act(
        hub, admin, "policy", node="gpu1", **fields | {"idle_timeout_s": "86400", "quotas": "*=60GiB"}
    )
    assert "The policy of gpu1 is set." in text_of(answer)
    policy = node.machine.ask("GET", "/policy")[1]
    assert (policy["idle_timeout_s"], policy["quotas"], policy["hold_max_s"]) == (86400, "*=60GiB", 7200)
    assert policy["allow_migration"] is (form["allow_migration"] == "true")
    bad = act(hub, admin, "policy", node="gpu1", **fields | {"low_watermark": "plenty"})
    assert "Refused: low_watermark: 'plenty' is no number." in text_of(bad)


def test_free_room_is_told_to_every_user_in_totals(hub, node):
    hub.add("ana")
    token = hub.ask("POST", "/users/ana/tokens", {})[1]["token"]
    url = f"{hub.url}/services/affinode/room"
    answer = requests.get(
        url, params={"bytes": 20 * GIB}, headers={"Authorization": f"token {token}"}, timeout=60
    )
    assert answer.json() == {
        "text": "GPU: 1 of 2 with room for 20 GiB",
        "gpus": 2,
        "with_room": 1,
        "waiting": 0,
    }
    assert requests.get(url, timeout=60).status_code == 401
    assert requests.get(url, headers={"Authorization": "token none"}, timeout=60).status_code == 401


@pytest.fixture
def renewing(hub):
    """Ana, in a group of the Hub's, and how her servers renew their grants."""
    hub.add("ana")
    hub.join("ml", "ana")
    key = hub.folder / "hub-1.key"

    def token(scope="access:servers!server=ana/gpu"):
        return hub.ask("POST", "/users/ana/tokens", {"scopes": [scope]})[1]["token"]

    def last(**options):
        return sign_grant(
            key.read_bytes(), "hub-1", **{"user": "ana", "server": "gpu", "audience": "tests", **options}
        )

    def ask(token, body):
        headers = {"Authorization": f"token {token}"} if token else {}
        url = f"{hub.url}/services/affinode/grant"
        return requests.post(url, json=body, headers=headers, timeout=60)

    def claims(answer):
        assert answer.status_code == 200, answer.text
        grant = answer.json()["grant"]
        uid = jwt.decode(grant, options={"verify_signature": False}).get("uid")
        return GrantVerifier(hub.folder / "keys", ["tests"]).verify(grant, uid)

    return SimpleNamespace(token=token, last=last, ask=ask, claims=claims, key=key)


def test_a_server_gets_a_new_grant_for_its_own_token_and_nothing_else_does(renewing):
    last = {"grant": renewing.last()}
    answer = renewing.ask(renewing.token(), last)
    claims = renewing.claims(answer)
    assert (claims.user, claims.server, claims.groups) == ("ana", "gpu", ("ml",))
    assert answer.json()["lifetime_s"] == 3600
    another = renewing.token("read:users!user=ana")
    assert [renewing.ask(token, last).status_code for token in (another, None, "x")] == [403, 401, 401]
    assert renewing.ask(TOKEN, last).status_code == 403  # a service's


def test_a_renewed_grant_keeps_what_the_spawner_decided(renewing):
    caps = {"gpu_bytes": 5.0 * GIB}
    own = renewing.token()
    said = {"priority": -5, "caps": caps, "uid": 1000, "account": "physics", "job": "4711"}
    grant = renewing.last(**said, token=digest(own), groups=["was-in"])
    for _ in range(2):  # the second time it is the renewed one that is shown
        answer = renewing.ask(own, {"grant": grant})
        claims = renewing.claims(answer)
        assert claims.groups == ("ml",)
        grant = answer.json()["grant"]
        assert said.items() <= jwt.decode(grant, options={"verify_signature": False}).items()


def test_a_grant_is_renewed_after_its_end_by_the_token_that_it_names_alone(renewing):
    own, another = renewing.token(), renewing.token()
    ended = {"lifetime_s": -7 * 86400, "priority": 3}
    answer = renewing.ask(own, {"grant": renewing.last(token=digest(own), **ended)})
    assert renewing.claims(answer).priority == 3
    assert renewing.ask(another, {"grant": renewing.last(token=digest(own), priority=5)}).status_code == 403
    assert renewing.ask(own, {"grant": renewing.last(**ended)}).status_code == 403


def test_a_grant_that_a_replaced_key_has_signed_is_renewed(renewing):
    private, public = make_keys()
    options = {"user": "ana", "server": "gpu", "audience": "tests", "priority": -2}
    last = {"grant": sign_grant(private, "hub-0", **options)}
    own = renewing.token()
    assert renewing.ask(own, last).status_code == 403
    renewing.key.with_name("hub-0.pem").write_bytes(public)
    assert renewing.claims(renewing.ask(own, last)).priority == -2


def test_without_a_grant_of_the_same_server_none_is_renewed(renewing):
    """Else a user whose class is low would get the usual one by showing nothing."""
    stranger, _ = make_keys()
    own, good = renewing.token(), renewing.last(priority=-5)
    head, body, _ = good.split(".")
    options = {"user": "ana", "server": "gpu", "audience": "tests"}
    bodies = [None, [], "x", 5, {}, {"grant": None}, {"grant": 7}, {"grant": ""}, {"grant": "x" * 100_000}]
    bodies += [{"grant": grant} for grant in (
        sign_grant(stranger, "hub-1", **options),
        sign_grant(stranger, "keys/hub-1", **options),
        sign_grant(stranger, "../hub-1", **options),
        f"{head}.{body}.",
        renewing.last(user="ben"),
        renewing.last(server=None),
        renewing.last(server="other"),
        renewing.last(is_administrator=True),
        renewing.last(priority="x"),
        renewing.last(priority=10**400),
        renewing.last(caps={"gpu_bytes": "x"}),
        renewing.last(uid=True),
        base64.urlsafe_b64encode(b"[" * 3000).decode() + ".a.b",
    )]  # fmt: skip
    for each in bodies:
        answer = renewing.ask(own, each)
        assert answer.status_code == 403 and answer.json()["message"], (each, answer.text)


def test_behind_a_hub_with_internal_tls_the_page_is_served_to_programs_of_the_hub(tmp_path):
    """And the Hub's certificates are asked of them, too."""
    certificates = Certipy(store_dir=str(tmp_path))
    certificates.create_ca("internal")
    names = ["DNS:localhost"]
    own = certificates.create_signed_pair("services-affinode", "internal", alt_names=names)["files"]
    proxy = certificates.create_signed_pair("proxy", "internal", alt_names=names)["files"]
    auth = SimpleNamespace(keyfile=own["key"], certfile=own["cert"], client_ca=own["ca"])

    async def asked(options):
        server = HTTPServer(Application([("/", RequestHandler)]), ssl_options=_internal_ssl(auth))
        server.add_sockets(sockets := bind_sockets(0, "127.0.0.1"))
        url = f"https://localhost:{sockets[0].getsockname()[1]}/"
        try:
            return (await AsyncHTTPClient().fetch(url, raise_error=False, ssl_options=options)).code
        finally:
            server.stop()
            await server.close_all_connections()

    theirs = make_ssl_context(proxy["key"], proxy["cert"], cafile=proxy["ca"])
    assert asyncio.run(asked(theirs)) == 405  # it has no GET, and was asked
    without = ssl.create_default_context(cafile=proxy["ca"])
    with pytest.raises(OSError):
        asyncio.run(asked(without))


def test_the_service_asks_the_controller_that_the_hub_asks(monkeypatch):
    monkeypatch.setenv("AFFINODE_SOCKET", "/run/simulated/node.sock")
    c = Config()
    add_service(c)
    add_service(c)
    (service,) = c.JupyterHub.services.to_dict()["extend"]
    assert service["command"][-1].endswith("=/run/simulated/node.sock")
    assert "grant_url" not in c.GpuPolicy


@pytest.mark.parametrize("section", ["GpuPolicy", "KubeSpawner", "Spawner"])
def test_where_grants_are_renewed_is_the_sites_to_say_for_whichever_class(section):
    c = Config()
    c[section].grant_url = "http://proxy-public/services/affinode/grant"
    add_service(c, grant_key="/etc/affinode/hub-1.key", grant_audience=["affinode:cluster"])
    told = [c[each].get("grant_url") for each in ("GpuPolicy", "KubeSpawner", "Spawner")]
    assert [each for each in told if each] == ["http://proxy-public/services/affinode/grant"]


def test_servers_are_told_where_their_grants_are_renewed():
    c = Config()
    c.JupyterHub.base_url = "/hubs/one/"
    c.JupyterHub.services = [{"name": "another"}]
    add_service(c, grant_key="/etc/affinode/hub-1.key", grant_audience=["affinode:cluster"])
    assert c.GpuPolicy.grant_url == "http://127.0.0.1:10109/hubs/one/services/affinode/grant"
    assert [service["name"] for service in c.JupyterHub.services] == ["another", "affinode"]
