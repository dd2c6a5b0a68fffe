"""The server extension on a real server with a real controller, without a GPU."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
import urllib.request

import pytest
from live_machine import UnixConnection, new_machine
from live_server import ENDLESS, JupyterServer


@pytest.fixture(scope="module")
def kernel(shared_server):
    """A kernel for tests that leave it as they find it."""
    made = shared_server.start_kernel()
    yield made
    made.shutdown()


@pytest.fixture
def followed(shared_server, new_kernel, wait_until):
    """A server whose extension follows a controller; its kernels end with the test."""
    wait_until(lambda: shared_server.affinode()[1]["available"])
    return shared_server


def own(server, kernel) -> dict | None:
    kernels = server.affinode()[1]["kernels"]
    return next((one for one in kernels if one["id"] == kernel.id), None)


def test_status_and_controller_have_own_kernels_with_their_paths_also_after_a_rename(followed, wait_until):
    kernel = followed.start_kernel(path="plan.ipynb")
    # Its process may be known before it is described.
    shown = wait_until(lambda: (found := own(followed, kernel)) and found["name"] and found)
    status = followed.affinode()[1]
    assert status["version"] == "0.1.0" and status["message"] is None
    assert status["node"]["controller"]["pid"] == followed.machine.controller_pid()
    assert shown["own"] is True and shown["paths"] == ["plan.ipynb"] and shown["path"] == "plan.ipynb"
    assert shown["residency"] == "none" and shown["name"] == "Python 3 (ipykernel)"
    sessions = followed.request("GET", "/api/sessions")[1]
    session = next(one for one in sessions if one["kernel"]["id"] == kernel.id)
    followed.request("PATCH", f"/api/sessions/{session['id']}", {"path": "final plan.ipynb"})
    wait_until(lambda: followed.machine.kernel(kernel.id)["path"] == "final plan.ipynb")
    assert own(followed, kernel)["paths"] == ["final plan.ipynb"]


def test_a_new_controller_is_told_of_open_cells_and_names(followed, wait_until):
    machine, kernel = followed.machine, followed.start_kernel(path="plan.ipynb")
    wait_until(lambda: machine.kernel(kernel.id))
    kernel.submit(ENDLESS)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    machine.kill_controller()
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("cell_open"))
    wait_until(lambda: machine.kernel(kernel.id)["path"] == "plan.ipynb")
    assert "Lost the GPU controller" in followed.log()


def test_the_controller_knows_of_open_cells_and_of_what_ends_them(followed, wait_until):
    machine, kernel = followed.machine, followed.start_kernel()
    wait_until(lambda: machine.kernel(kernel.id))
    message_id = kernel.begin(ENDLESS)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    kernel.interrupt()
    assert kernel.wait(message_id).error == "KeyboardInterrupt"
    wait_until(lambda: not machine.kernel(kernel.id)["cell_open"])
    kernel.submit(ENDLESS)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    kernel.restart()
    wait_until(lambda: not machine.kernel(kernel.id)["cell_open"])
    kernel.submit(ENDLESS)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    kernel.shutdown()
    wait_until(lambda: machine.kernel(kernel.id) is None)


@pytest.mark.long
def test_a_kernel_of_another_provisioner_is_followed_without_harm(followed, kernelspec, wait_until):
    kernelspec(
        "plain", followed.machine, metadata={"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
    )
    kernel = followed.start_kernel("plain")
    assert "AFFINODE_KERNEL_ID" not in kernel.environment()
    assert kernel.run("print(1)").text == "1\n"
    kernel.restart()
    assert kernel.run("print(2)").text == "2\n"
    kernel.shutdown()
    wait_until(lambda: followed.machine.kernel(kernel.id) is None)
    assert "failed" not in followed.log()


def test_hold_and_release_through_the_server(followed, kernel, wait_until):
    wait_until(lambda: own(followed, kernel))
    status, held = followed.affinode(f"kernels/{kernel.id}/hold", "POST", {"duration_s": 3600})
    assert status == 200 and 3000 < held["held_for_s"] <= 3600 and held["own"] is True
    status, released = followed.affinode(f"kernels/{kernel.id}/release", "POST", {})
    assert status == 200 and released["held_for_s"] is None
    assert followed.affinode(f"kernels/{kernel.id}/focus", "POST", {})[0] == 200
    assert kernel.state()["id"] == kernel.id


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("hold", {"duration_s": "long"}),
        ("hold", {"duration_s": -1}),
        ("hold", {"duration_s": True}),
        ("hold", {"duration_s": 1e999}),
        ("hold", {"duration_s": 10**400}),
        ("hold", {"forever": True}),
        ("park", {"duration_s": 5}),
        ("park", []),
        ("park", "now"),
    ],
)
def test_a_body_that_makes_no_sense_is_a_friendly_400(followed, action, body):
    status, answer = followed.affinode(f"kernels/any/{action}", "POST", body)
    assert status == 400 and answer["error"] == "bad-request" and answer["message"].endswith(".")


def test_what_is_not_this_servers_is_shown_without_names_and_not_moved(followed, wait_until):
    machine = followed.machine
    about = {"name": "Secret", "path": "secret.ipynb", "server": "lab at /elsewhere"}
    machine.ask("PUT", "/kernels/other", about)
    others = wait_until(lambda: [k for k in followed.affinode()[1]["kernels"] if k["id"] == "other"])
    assert others[0]["own"] is False and others[0]["name"] is None and others[0]["path"] is None
    assert others[0]["paths"] == []
    status, answer = followed.affinode("kernels/other/park", "POST", {})
    assert status == 404 and answer["error"] == "not-here"
    status, answer = followed.affinode("kernels/unknown")
    assert status == 404 and answer["message"]


def test_a_program_of_the_same_user_without_a_server_is_shown_by_its_command(followed, wait_until):
    followed.machine.ask("PUT", "/kernels/program", {"name": "python train.py"})
    (program,) = wait_until(lambda: [k for k in followed.affinode()[1]["kernels"] if k["id"] == "program"])
    assert program["name"] == "python train.py" and program["own"] is False and program["path"] is None
    status, answer = followed.affinode("kernels/program/park", "POST", {})
    assert status == 404 and answer["error"] == "not-here"


def test_a_user_changes_the_policy_of_their_own_controller(followed):
    assert followed.affinode()[1]["node"]["policy"]["may_change"] is True
    status, settings = followed.affinode("policy", "PATCH", {"park_when": "idle", "idle_timeout_s": 77})
    assert (status, settings["park_when"], settings["idle_timeout_s"]) == (200, "idle", 77)
    assert followed.affinode()[1]["node"]["policy"]["idle_timeout_s"] == 77
    for body in ({"park_when": "never"}, {"configured_at": 5}, {"no_setting": 1}, []):
        status, answer = followed.affinode("policy", "PATCH", body)
        assert status == 400 and answer["message"], body
    followed.affinode("policy", "PATCH", {"park_when": "needed", "idle_timeout_s": 300})


def test_answers_are_compressed_for_browsers_that_take_it(followed):
    def ask(**headers):
        url = f"{followed.url}/affinode/api/status"
        request = urllib.request.Request(url, headers={"Authorization": f"token {followed.token}", **headers})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers, answer.read()

    headers, body = ask(**{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and headers["Vary"] == "Accept-Encoding"
    assert json.loads(gzip.decompress(body))["available"] is True
    headers, body = ask()
    assert headers["Content-Encoding"] is None and json.loads(body)["code"] is None


def test_without_a_token_nothing_is_answered(followed):
    for method, path in (("GET", "status"), ("GET", "doctor"), ("POST", "kernels/x/park")):
        assert followed.request(method, f"/affinode/api/{path}", {}, token="wrong")[0] == 403


@pytest.fixture(scope="module")
def configured_server(native):
    """A server with an authorizer and a policy of its own; on a machine of its own."""
    with new_machine() as machine:
        made = JupyterServer(machine)
        made.allow()
        yield made.start("--AffinodeExtension.park_when=idle", "--AffinodeExtension.idle_timeout_s=7")
        made.stop()


def test_reading_and_moving_need_the_right_to_read_and_write_kernels(configured_server, wait_until):
    server, machine = configured_server, configured_server.machine
    kernel = server.start_kernel()
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("name"))
    wait_until(lambda: "Following the GPU controller" in server.log())  # the kernel's start may meet it first
    for allowed, reading, moving in (
        ([], 403, 403),
        (["read"], 200, 403),
        (["read", "write"], 200, 200),
    ):
        server.allow(*allowed)
        status, answer = server.affinode()
        assert status == reading
        assert answer.get("may_act") is (None if reading == 403 else moving == 200)
        assert server.affinode(f"kernels/{kernel.id}")[0] == reading
        assert server.affinode("doctor")[0] == reading
        assert server.affinode(f"kernels/{kernel.id}/release", "POST", {})[0] == moving
        assert server.affinode("policy", "PATCH", {})[0] == moving
        assert server.affinode("kept/none", "DELETE")[0] == (404 if moving == 200 else 403)


def test_without_a_folder_for_images_no_kernel_hibernates(followed, kernel):
    status, refused = followed.affinode(f"kernels/{kernel.id}/hibernate", "POST", {})
    assert status == 409 and "hibernate_dir" in refused["message"]
    assert "AFFINODE_HIBERNATES" not in kernel.environment()
    assert "Not hibernated" in kernel.run("%gpu_hibernate").text
    assert not list(followed.machine.folder.rglob("keep*.sock")), "no keeper runs"


def test_polling_does_not_keep_the_server_alive(followed, kernel):
    followed.affinode(f"kernels/{kernel.id}/release", "POST", {})

    def last_activity() -> str:
        return followed.request("GET", "/api/status?no_track_activity=1")[1]["last_activity"]

    before = last_activity()
    for path in ("status", f"kernels/{kernel.id}"):
        assert followed.affinode(path)[0] == 200
    assert last_activity() == before
    followed.affinode(f"kernels/{kernel.id}/release", "POST", {})
    assert last_activity() > before


def test_the_metrics_are_on_the_servers_page(followed):
    request = urllib.request.Request(
        followed.url + "/metrics", headers={"Authorization": f"token {followed.token}"}
    )
    with urllib.request.urlopen(request) as response:
        text = response.read().decode()
    assert "affinode_controller_available 1.0" in text
    ours = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE affinode_")}
    connection = UnixConnection(followed.machine.socket)
    connection.request("GET", "/metrics")
    controllers = connection.getresponse().read().decode()
    connection.close()
    both = {name for name in ours if f"# TYPE {name} " in controllers}
    assert "# TYPE affinode_kernels " in controllers and not both, "sums over all targets would double"


def test_configured_policy_reaches_every_controller(configured_server, wait_until):
    machine = configured_server.machine

    def policy() -> tuple:
        node = machine.node()
        return () if node is None else (node["settings"]["park_when"], node["settings"]["idle_timeout_s"])

    wait_until(lambda: policy() == ("idle", 7))
    machine.kill_controller()
    wait_until(lambda: policy() == ("idle", 7))


@pytest.mark.long
def test_of_two_servers_the_one_that_started_last_says_how_whatever_their_order(
    native, server, machine, other_server, wait_until
):
    """After the controller's end both tell the next one, the first server last; what only one configures is its own."""
    server.start("--AffinodeExtension.idle_timeout_s=11", "--AffinodeExtension.cell_idle_timeout_s=600")
    wait_until(lambda: "Following the GPU controller" in server.log())
    other = other_server("--AffinodeExtension.idle_timeout_s=22")
    expected = {"idle_timeout_s": 22, "cell_idle_timeout_s": 600}

    def policy() -> dict:
        node = machine.node()
        return {} if node is None else {name: node["settings"][name] for name in expected}

    wait_until(lambda: policy() == expected)
    server.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(machine.controller_pid(), signal.SIGKILL)
        wait_until(lambda: other.log().count("Following the GPU controller") == 2)
    finally:
        server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: server.log().count("Following the GPU controller") == 2)
    assert policy() == expected
    answers = [
        machine.ask("PATCH", f"/policy?configured_at={moment}", {"idle_timeout_s": value})
        for moment, value in ((1.0, 33), (time.monotonic(), 44), (2.0, 55))
    ]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert [answer["idle_timeout_s"] for _, answer in answers] == [22, 44, 44]
    assert machine.ask("PATCH", "/policy", {"idle_timeout_s": 66})[1]["idle_timeout_s"] == 66
    assert machine.ask("PATCH", "/policy?configured_at=nan", {"idle_timeout_s": 66})[0] == 400


@pytest.fixture
def other_server(machine):
    """`other_server(*arguments)`: a second server of the same user."""
    made = JupyterServer(machine)
    yield made.start
    made.stop()


def test_the_machines_controller_keeps_its_policy_though_the_server_is_an_administrators(
    native, server, machine, wait_until
):
    machine.start_controller("--system", "--settle=0.1")
    before = machine.node()["settings"]
    server.start("--AffinodeExtension.park_when=idle", "--AffinodeExtension.idle_timeout_s=7")
    wait_until(lambda: "AffinodeExtension.park_when, idle_timeout_s has no effect" in server.log())
    wait_until(lambda: server.affinode()[1]["available"])
    assert machine.node()["settings"] == before


def test_the_doctor_is_there_too(followed):
    status, found = followed.affinode("doctor")
    assert status == 200
    provisioner = next(check for check in found["checks"] if check["name"] == "provisioner")
    assert provisioner["level"] == "ok"


@pytest.mark.long
def test_a_kernel_started_before_the_controller_answers_is_found(native, server, machine, wait_until):
    """The controller cannot start at first (its folder is not ours to use), then it can."""
    machine.socket.parent.chmod(0o777)
    server.start()
    kernel = server.start_kernel()
    status, answer = server.affinode()
    assert status == 200 and answer["available"] is False and answer["message"]
    assert server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 503
    kernel.submit(ENDLESS)
    machine.socket.parent.chmod(0o700)
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("cell_open"))


@pytest.mark.long
def test_a_server_whose_kernels_a_gateway_starts_says_so_and_starts_no_controller(
    native, machine, server, other_server
):
    gateway = other_server("--AffinodeExtension.enabled=False")
    server.start(f"--GatewayClient.url={gateway.url}", f"--GatewayClient.auth_token={gateway.token}")
    status, started = server.request("POST", "/api/kernels", {"name": "python3"})
    assert status == 201 and gateway.request("GET", f"/api/kernels/{started['id']}")[0] == 200
    status, answer = server.affinode()
    assert (status, answer["available"], answer["code"]) == (200, False, "remote")
    assert "on another machine" in answer["message"] and answer["kernels"] == []
    assert server.affinode(f"kernels/{started['id']}/park", "POST", {})[0] == 503
    assert machine.node() is None
    assert server.request("DELETE", f"/api/kernels/{started['id']}")[0] == 204


@pytest.mark.long
def test_two_servers_of_one_person_share_the_controller(native, machine, server, other_server, wait_until):
    server.start()
    machine.environment |= {"JUPYTERHUB_USER": "ana", "JUPYTERHUB_SERVER_NAME": "gpu"}
    other = other_server()
    mine, theirs = server.start_kernel(), other.start_kernel()
    wait_until(lambda: {mine.id, theirs.id} <= set(machine.kernels()))

    def labels() -> set[str | None]:
        return {kernel["server"] for kernel in machine.kernels().values()}

    wait_until(lambda: None not in labels() and "ana/gpu" in labels(), message=labels)
    assert len(labels()) == 2
    wait_until(lambda: len(server.affinode()[1]["kernels"]) == 2)
    whose = {kernel["id"]: kernel["own"] for kernel in server.affinode()[1]["kernels"]}
    assert whose == {mine.id: True, theirs.id: False}
    other.kill()
    assert mine.run("print(1)").text == "1\n"
    assert json.dumps(server.affinode()[1])


async def test_a_linked_extension_that_was_never_initialised_stops(jp_serverapp):
    """As when another extension keeps the server from starting: its kernels are to be shut down all the same."""
    extensions = jp_serverapp.extension_manager
    assert extensions.add_extension("jupyter_affinode", enabled=True)
    extensions.link_extension("jupyter_affinode")
    (app,) = extensions.extension_apps["jupyter_affinode"]
    assert app.name == "jupyter_affinode"
    await extensions.stop_all_extensions()
    await jp_serverapp._cleanup()
    jp_serverapp.kernel_manager.context.destroy()
    jp_serverapp.clear_instance()
