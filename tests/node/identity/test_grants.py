"""A grant is believed when it is whole, ours, for us and in time; and then it names the user."""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import ANY

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fake_shim import (
    GPU,
    HAS_GRANT,
    PARKED,
    REFUSED,
    RESIDENT,
    ROOM_ANSWER,
    FakePage,
    connect,
    grant_pieces,
    hello,
    message,
    send,
)
from people import needs_root, open_to_everyone

from jupyter_affinode import environment
from jupyter_affinode.cli import main
from jupyter_affinode.client.grant_signing import CannotSign, make_keys, sign_grant, write_grant
from jupyter_affinode.node.identity import grants
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.grants import LEEWAY_S, GrantRefused, GrantsUnavailable, GrantVerifier

US = "affinode:here"
UID = 1000
OF_NO_KIND = """-----BEGIN PUBLIC KEY-----
MCowBQYDKwcIAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""  # a public key of an unknown kind


@pytest.fixture
def keys(tmp_path):
    """`keys("k1")`: a new pair; the public one lies in `keys.folder`, which is returned by name."""
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)

    def make(kid):
        private, public = make_keys()
        (folder / f"{kid}.pem").write_bytes(public)
        return private

    make.folder = folder
    return make


@pytest.fixture
def verifier(keys):
    """A verifier with one key, and `sign(...)` with it."""
    private = keys("k1")
    made = GrantVerifier(keys.folder, [US, "affinode:site"])

    def sign(**claims):
        return sign_grant(private, "k1", **{"user": "alice", "audience": US, **claims})

    return SimpleNamespace(verify=made.verify, sign=sign, private=private, keys=keys, made=made)


def raw(private, kid="k1", algorithm="EdDSA", **claims):
    """A token with any claims."""
    now = int(time.time())
    whole = {"sub": "alice", "aud": US, "iat": now, "exp": now + 60, **claims}
    whole = {name: value for name, value in whole.items() if value is not None}
    return jwt.PyJWS().encode(json.dumps(whole).encode(), private, algorithm=algorithm, headers={"kid": kid})


def test_a_good_grant_names_its_user(verifier):
    claims = verifier.verify(
        verifier.sign(server="gpu", priority=3, caps={"gpu_bytes": 5 << 30}, audience=["x", US]), UID
    )
    assert (claims.user, claims.server, claims.priority) == ("alice", "gpu", 3)
    assert claims.caps == {"gpu_bytes": 5 << 30}
    assert verifier.verify(verifier.sign(groups=["staff", "ml"]), UID).groups == ("staff", "ml")
    assert claims.issued_at == pytest.approx(time.time(), abs=30)
    assert verifier.verify(verifier.sign(audience="affinode:site"), UID).user == "alice"


def without_signature(grant):
    head, body, _ = grant.split(".")
    return f"{head}.{body}."


def with_other_user(grant):
    head, body, signature = grant.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["sub"] = "mallory"
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def forgeries(verifier):
    """What is no good grant, and which word of why says so."""
    other, _ = make_keys()
    public = (verifier.keys.folder / "k1.pem").read_bytes()
    secret = base64.urlsafe_b64encode(public).decode()  # PyJWT itself will not sign with a public key's text
    hour = 3600
    return {
        "": "no signed token",
        "x": "no signed token",
        "a.b.c": "no signed token",
        without_signature(verifier.sign()): "not valid",
        with_other_user(verifier.sign()): "not valid",
        raw(other): "not valid",
        raw(verifier.private, kid="k2"): "not known here",
        raw(None, algorithm="none"): "not signed with",
        raw(secret, algorithm="HS256"): "not signed with",
        raw(verifier.private, exp=int(time.time()) - hour): "expired",
        raw(verifier.private, exp=None): "not valid",
        raw(verifier.private, iat=int(time.time()) + hour, exp=int(time.time()) + 2 * hour): "not valid yet",
        raw(verifier.private, nbf=int(time.time()) + hour): "not valid yet",
        raw(verifier.private, aud="affinode:elsewhere"): "another controller",
        raw(verifier.private, aud=None): "not valid",
        raw(verifier.private, sub=None): "not valid",
        raw(verifier.private, sub=""): "no user",
        raw(verifier.private, sub="a\nb"): "no name",
        raw(verifier.private, sub="x" * 300): "no name",
        raw(verifier.private, priority=1.5): "priority",
        raw(verifier.private, priority=True): "priority",
        raw(verifier.private, priority=10**9): "priority",
        raw(verifier.private, caps=["a"]): "caps",
        raw(verifier.private, caps={"a": -1}): "caps",
        raw(verifier.private, caps={"a": "5"}): "caps",
        raw(verifier.private, caps={"A b": 5}): "caps",
        raw(verifier.private, groups="staff"): "groups",
        raw(verifier.private, groups=[5]): "groups",
        raw(verifier.private, groups=["a\nb"]): "groups",
        raw(verifier.private, groups=["x" * 300]): "groups",
        raw(verifier.private, groups=["g"] * 300): "groups",
        raw(verifier.private, uid=1001): "another user id",
    }


def test_everything_else_is_refused_with_the_reason(verifier):
    for grant, why in forgeries(verifier).items():
        with pytest.raises(GrantRefused, match=why):
            verifier.verify(grant, UID)


NO_NUMBERS = [float("nan"), float("inf"), -float("inf")]
ODD = ["x", "5", "", [], [[]], {}, {"a": 1}, True, False, 1.5, -1, 10**400, -(10**400), 2**63, *NO_NUMBERS]
ODD_HEADERS = [
    b"null",
    b"[]",
    b"5",
    b'"x"',
    b'{"alg":["EdDSA"],"kid":"k1"}',
    b'{"alg":"EdDSA","kid":{}}',
    b'{"alg":"EdDSA","kid":"\\ud800"}',
    b'{"alg":"EdDSA","kid":"k1","b64":false,"crit":["b64"]}',
]
CLAIMS = (
    "sub",
    "aud",
    "iat",
    "exp",
    "nbf",
    "server",
    "priority",
    "caps",
    "groups",
    "uid",
    "admin",
    "jti",
    "iss",
)


def nested(depth):
    """Lists within lists, as one part of a token."""
    return base64.urlsafe_b64encode(b"[" * depth).decode()


def odd_grants(verifier):
    """Tokens of every shape: each claim of each wrong type, well signed, and what is no JSON object."""
    for claim in CLAIMS:
        for value in ODD:
            yield f"{claim}={value!r:.20}", raw(verifier.private, **{claim: value})
            yield f"admin {claim}={value!r:.20}", raw(verifier.private, **{"admin": True, claim: value})
    for value in ODD:
        yield f"cap {value!r:.20}", raw(verifier.private, caps={"gpu_bytes": value})
        yield f"group {value!r:.20}", raw(verifier.private, groups=[value])
        yield f"aud {value!r:.20}", raw(verifier.private, aud=[US, value])
    _, body, signature = verifier.sign().split(".")
    for depth in (900, 2000, 40_000):
        yield f"header {depth}", f"{nested(depth)}.{body}.{signature}"
        yield f"{depth}", ".".join([nested(depth)] * 3)
    for odd in ODD_HEADERS:
        yield f"header {odd!r}", f"{base64.urlsafe_b64encode(odd).decode()}.{body}.{signature}"


def test_a_claim_of_a_wrong_type_is_refused_and_no_error(verifier):
    for what, grant in odd_grants(verifier):
        for check, other in ((verifier.verify, UID), (verifier.made.verify_administrator, US)):
            try:
                claims = check(grant, other)
            except GrantRefused:
                continue
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
            assert isinstance(claims.issued_at, float) and isinstance(claims.priority, int), what
            assert all(isinstance(group, str) for group in claims.groups), what


def test_a_grant_for_a_user_id_is_refused_to_other_user_ids(verifier):
    assert verifier.verify(verifier.sign(uid=UID), UID).user == "alice"
    with pytest.raises(GrantRefused, match="another user id"):
        verifier.verify(verifier.sign(uid=UID), 1001)


def test_clocks_may_differ_a_little(verifier):
    now = int(time.time())
    assert verifier.verify(raw(verifier.private, exp=now - int(LEEWAY_S / 2)), UID).user == "alice"
    assert verifier.verify(raw(verifier.private, iat=now + int(LEEWAY_S / 2)), UID).user == "alice"


def test_keys_are_changed_while_it_runs(verifier, monkeypatch):
    monkeypatch.setattr(grants, "LOOK_AGAIN_S", 0.0)

    def is_good(grant):
        try:
            return verifier.verify(grant, UID).user == "alice"
        except GrantRefused:
            return False

    newer = verifier.keys("k2")
    fresh = sign_grant(newer, "k2", user="alice", audience=US)
    assert is_good(fresh) and is_good(verifier.sign())
    (verifier.keys.folder / "k1.pem").unlink()
    assert not is_good(verifier.sign())
    (verifier.keys.folder / "k3.pem").write_text("half a k")
    assert is_good(fresh)


@pytest.mark.parametrize("text", ["[]", "null", "[" * 100_000, OF_NO_KIND])
def test_a_file_that_is_no_key_leaves_the_keys_as_they_are(verifier, monkeypatch, text):
    """Also for connections that are open: each is asked again with every heartbeat."""
    monkeypatch.setattr(grants, "LOOK_AGAIN_S", 0.0)
    claims = verifier.verify(verifier.sign(), UID)
    (verifier.keys.folder / ("k2.pem" if text is OF_NO_KIND else "hub.json")).write_text(text)
    assert verifier.made.still_has(claims.kid, claims.key)
    assert verifier.verify(verifier.sign(), UID).user == "alice"
    with pytest.raises(GrantsUnavailable, match="cannot be read"):
        GrantVerifier(verifier.keys.folder, [US])


def test_a_key_set_is_as_good_as_files(verifier, keys):
    key = load_pem_public_key((keys.folder / "k1.pem").read_bytes())
    entry = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key)) | {"kid": "k1", "alg": "EdDSA"}
    (keys.folder / "k1.pem").unlink()
    (keys.folder / "hub.json").write_text(json.dumps({"keys": [entry]}))
    assert GrantVerifier(keys.folder, [US]).verify(verifier.sign(), UID).user == "alice"


def test_keys_that_others_can_write_are_none(keys):
    keys("k1")
    (keys.folder / "k1.pem").chmod(0o666)
    with pytest.raises(GrantsUnavailable, match="write"):
        GrantVerifier(keys.folder, [US])
    with pytest.raises(GrantsUnavailable, match="cannot be read"):
        GrantVerifier(keys.folder / "nowhere", [US])


def test_the_command_makes_keys_and_grants(tmp_path, capsys):
    assert main(["grant", "keys", str(tmp_path), "hub-1"]) == 0
    assert (tmp_path / "hub-1.key").stat().st_mode & 0o777 == 0o600
    assert main(["grant", "keys", str(tmp_path), "hub-1"]) == 1
    capsys.readouterr()
    sign = ["grant", "sign", "--key", str(tmp_path / "hub-1.key"), "--user", "bob", "--audience", US]
    assert main([*sign, "--cap", "gpu_bytes=5e9", "--priority", "2", "--group", "a", "--group", "b"]) == 0
    claims = GrantVerifier(tmp_path, [US]).verify(capsys.readouterr().out.strip(), UID)
    assert (claims.user, claims.priority, claims.caps) == ("bob", 2, {"gpu_bytes": 5e9})
    assert claims.groups == ("a", "b")
    assert main([*sign, "--output", str(tmp_path / "grant")]) == 0
    environ = {environment.GRANT_FILE: str(tmp_path / "grant"), environment.GRANT: "older"}
    assert GrantVerifier(tmp_path, [US]).verify(environment.grant(environ), UID).user == "bob"
    assert main([*sign, "--cap", "nonsense"]) == 1
    with pytest.raises(CannotSign):
        sign_grant(b"no key", "k", user="bob", audience=US)


def test_a_grant_is_written_past_whatever_lies_in_its_folder(tmp_path, monkeypatch):
    """Links that a user put there, under the file's name or the one that it is made under, lead nowhere."""
    victim, path = tmp_path / "victim", tmp_path / "grants" / "alice"
    victim.write_text("precious")
    path.parent.mkdir()
    path.symlink_to(victim)
    guessed = ["00" * 16, "11" * 16]
    monkeypatch.setattr("secrets.token_hex", lambda size: guessed[0])
    trap = path.with_name(f".alice.{guessed[0]}")
    trap.symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_grant(path, "header.claims.signature")
    assert path.is_symlink() and trap.is_symlink()
    del guessed[0]
    write_grant(path, "header.claims.signature")
    assert not path.is_symlink() and path.read_text() == "header.claims.signature\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert victim.read_text() == "precious"
    assert {each.name for each in path.parent.iterdir()} == {"alice", trap.name}


def test_a_renewed_grant_stays_its_owners(tmp_path):
    needs_root()
    path = tmp_path / "alice"
    write_grant(path, "old.grant.signed")
    os.chown(path, 61001, 61100)
    write_grant(path, "new.grant.signed")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (61001, 61100, 0o600)
    assert path.read_text() == "new.grant.signed\n"


def test_a_grant_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "alice"
    write_grant(path, "old.grant.signed")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_grant(path, "new.grant.signed")
    assert path.read_text() == "old.grant.signed\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("how", ["no key", "no key's text", "groups"])
def test_a_grant_that_cannot_be_made_keeps_no_server_from_starting(tmp_path, caplog, how):
    """Five that do not start in a row end a Hub."""
    from jupyterhub.spawner import LocalProcessSpawner

    from hub_spawner.enabling import derived

    key = tmp_path / "k1.key"
    if how != "no key":
        key.write_bytes(b"nothing" if how == "no key's text" else make_keys()[0])
    many = [SimpleNamespace(name=f"a group with a long name {number}") for number in range(200)]
    spawner = derived(LocalProcessSpawner)(grant_key=str(key))
    spawner.log = logging.getLogger("test")
    spawner.user = SimpleNamespace(name="carol", groups=many if how == "groups" else [])
    assert spawner.gpu_environment() == {}
    assert "carol gets no grant" in caplog.text


# ---- on a controller


@pytest.fixture
def granting(node, machine, verifier):
    """A controller of all users that asks for grants; the user of this test is no administrator there."""
    open_to_everyone(machine)
    grants = GrantVerifier(verifier.keys.folder, [US])
    return node(access=EveryUserAccess(grants=grants, require_grants=True))


@pytest.mark.parametrize("said, class_", [(4, 4), (1000, 5)])
def test_the_grant_is_the_person_and_its_priority_the_kernels(granting, person, verifier, said, class_):
    alice = person(None, grant=verifier.sign(priority=said, caps={"gpu_bytes": 1}))
    bob = person(None, grant=verifier.sign(user="bob"))
    alice.shim("k1", resident=1 << 20)
    assert (alice.kernels()["k1"]["user"], alice.kernels()["k1"]["priority"]) == ("hub:alice", class_)
    assert bob.kernels() == {}
    assert bob.ask("POST", "/kernels/user-alice%2Fk1/park", {})[0] == 404


def test_bad_grants_are_refused_by_link_and_api(granting, person, verifier):
    without_grant = person(None)
    refused = [grant for grant in forgeries(verifier) if grant and grant.isascii()]
    with ThreadPoolExecutor(6) as asking:  # each waits for a second for its refusal
        answers = list(asking.map(lambda grant: without_grant.ask("GET", "/node", grant=grant), refused))
    assert [status for status, _ in answers] == [401] * len(refused)
    for grant in refused:
        shim = person(None, grant=grant).shim("stolen")
        assert shim.heard.ended and shim.heard.welcome is None
    assert person(None, grant=verifier.sign()).kernels() == {}


def test_a_grant_with_a_claim_of_a_wrong_type_is_refused_by_link_and_api(granting, person, verifier):
    odd = {"iat": "x", "exp": [], "priority": 10**400, "uid": True, "caps": "x"}
    grants = [raw(verifier.private, **{claim: value}) for claim, value in odd.items()]
    grants.append(f"{nested(2500)}.a.b")
    without_grant = person(None)
    with ThreadPoolExecutor(len(grants)) as pool:  # a refusal takes a second
        answers = list(pool.map(lambda grant: without_grant.ask("GET", "/kernels", grant=grant), grants))
    assert {(status, answer["error"]) for status, answer in answers} == {(401, "bad-grant")}
    for grant in grants:
        assert person(None, grant=grant).shim("odd").heard.ended, grant[:40]


def test_grants_in_disorder_cost_the_connection(granting, verifier):
    whole = grant_pieces(verifier.sign())
    page = FakePage()
    for pieces in (
        whole[1:],
        [*whole[:1], *whole[:1]],
        [message(5, b"\xff" * 200)],
        [message(2, b"\0" * 32)],
        [hello("again", flags=HAS_GRANT)],
    ):
        with connect(granting.socket.with_name("link.sock")) as link:
            try:
                send(link, hello("k", flags=HAS_GRANT), page.descriptor)
                for piece in pieces:
                    send(link, piece)
                heard = link.recv(4096)
            except (BrokenPipeError, ConnectionResetError):
                heard = b""
            assert heard == b""
    page.close()


def test_a_unix_user_and_a_hub_user_of_one_name_share_no_rule(
    node, shared_machine, person, verifier, wait_until
):
    """Nor do groups: of a grant's groups the rules know those alone that it names."""
    node(
        access=EveryUserAccess(grants=GrantVerifier(verifier.keys.folder, [US])),
        park_when="idle",
        idle_timeout_s=0.1,
        priorities="root=3, hub:ann=4, @root=1, @hub:ml=-2, @hub:big=2",
        opt_out="root, @hub:kept",
        quotas="@hub:ml=5MiB",
    )
    people = {
        "root": person(None),
        "hub:root": person(None, grant=verifier.sign(user="root", groups=["ml", "big"])),
        "hub:ann": person(None, grant=verifier.sign(user="ann", groups=["kept", "ml"])),
        "hub:ben": person(None, grant=verifier.sign(user="ben", groups=["root"])),
    }
    shims = {name: person.shim("k", resident=1 << 20) for name, person in people.items()}

    def kernels():
        return {kernel["user"]: kernel for kernel in people["root"].kernels().values()}

    def classes():
        return {name: kernel["priority"] for name, kernel in kernels().items()}

    wait_until(lambda: classes() == {"root": 3, "hub:root": 2, "hub:ann": 4, "hub:ben": 0})
    wait_until(lambda: shims["hub:root"].state == shims["hub:ben"].state == PARKED)
    assert shims["root"].state == shims["hub:ann"].state == RESIDENT
    shims["hub:root"].resume_status = REFUSED
    shims["hub:ann"].allocate(5 << 20, number=1)
    wait_until(lambda: shims["hub:ann"].heard.of(ROOM_ANSWER))
    denied = shims["hub:ann"].heard.of(ROOM_ANSWER)[0]
    assert denied.argument == 0 and "limit of group hub:ml" in denied.reason


def expiring(private, **claims):
    """A grant that is good for two seconds more, and when it is not."""
    ends = int(time.time()) + 2
    return raw(private, exp=ends - int(LEEWAY_S), **claims), ends


def let_in_until_it_expired(person, private, wait_until, caps=None, **memory):
    """(a user, their shim that was let in): since then their grant has expired."""
    while True:
        grant, ends = expiring(private, caps=caps)
        alice = person(None, grant=grant)
        shim = alice.shim("k1", **memory)
        if shim.heard.welcome is not None:
            break
        alice.close()  # on a loaded machine it came too late
    wait_until(lambda: time.time() > ends + 1)  # nothing else makes a grant expire
    return alice, shim


def reaches(shim, residency, wait_until):
    """A call at the closed gate is answered by the controller."""
    shim.touch()
    wait_until(lambda: shim.state == residency)


def test_a_connection_outlives_the_grant_that_opened_it(machine, person, verifier, wait_until):
    """Also after a pause and after the controller's end: a parked kernel must not wait for a grant."""

    def start():
        machine.start_controller(
            "--system", "--settle=0.1", f"--grant-keys={verifier.keys.folder}", "--require-grants",
            f"--NodeController.grant_audiences={US}",
        )  # fmt: skip

    open_to_everyone(machine)
    start()
    alice, shim = let_in_until_it_expired(
        person, verifier.private, wait_until, caps={"gpu_bytes": 1 << 30}, parked=1 << 20
    )
    reaches(shim, RESIDENT, wait_until)
    shim.beats = False
    wait_until(lambda: shim.heard.ended)
    again = alice.shim("k1", page=shim.page)
    os.kill(machine.controller_pid(), signal.SIGKILL)
    wait_until(lambda: again.heard.ended)
    again.page.memory[GPU][:2] = [0, 1 << 20]
    again.page.state = PARKED
    again.page.write()
    start()
    after = alice.shim("k1", page=shim.page)
    reaches(after, RESIDENT, wait_until)
    newer = person(None, grant=verifier.sign())
    assert newer.kernels()["k1"]["processes"], "it is still the same user's"
    assert "Traceback" not in machine.controller_log(), machine.controller_log()


def test_an_expired_grant_opens_no_further_connection(granting, person, verifier, wait_until):
    mallory, _ = expiring(verifier.private, sub="mallory")
    alice, shim = let_in_until_it_expired(person, verifier.private, wait_until, resident=1 << 20)
    assert alice.ask("GET", "/node") == (401, {"error": "bad-grant", "message": ANY})
    other = person(None, grant=mallory)
    refused = [alice.shim("k1"), other.shim("k1", page=shim.page)]
    assert all(each.heard.ended and not each.heard.welcome for each in refused)
    assert "its grant has expired" in granting.controller_log()
    assert not shim.heard.ended
    newer = person(None, grant=verifier.sign())
    newer.shim("k1", resident=2 << 20)
    assert newer.kernels()["k1"]["resident_bytes"] == 3 << 20


def test_the_grant_that_was_signed_last_counts(granting, person, verifier):
    """Else a user with an older one could go back to what it allowed."""
    earlier = raw(verifier.private, iat=int(time.time()) - 100, priority=5)
    alice = person(None, grant=verifier.sign(priority=-3))
    alice.shim("k1", resident=1 << 20)
    shim = person(None, grant=earlier).shim("k1", resident=1 << 20)
    assert shim.heard.welcome
    assert alice.kernels()["k1"]["priority"] == -3


def test_what_a_removed_key_has_signed_is_good_no_longer(granting, person, verifier, wait_until):
    """Also for connected users; a user with a grant of another key goes on."""
    other, public = make_keys()
    (verifier.keys.folder / "hub-2.pem").write_bytes(public)
    bob = person(None, grant=sign_grant(other, "hub-2", user="bob", audience=US))
    wait_until(lambda: bob.ask("GET", "/node")[0] == 200)  # its key is looked for once a second
    stays = bob.shim("k2", resident=1 << 20)
    shim = person(None, grant=verifier.sign()).shim("k1", resident=1 << 20)
    assert shim.heard.welcome
    for path in verifier.keys.folder.iterdir():
        if path.name != "hub-2.pem":
            path.unlink()
    wait_until(lambda: shim.heard.ended)
    assert "not known here any more" in granting.controller_log()
    assert bob.kernels()["k2"]["tracked"] and not stays.heard.ended
