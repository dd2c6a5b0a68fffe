"""The Hub's page about GPUs in a cluster: controllers in containers of two nodes, found by one name."""

from __future__ import annotations

import html
import re
import secrets
import signal

import pytest
import requests
from live_hub import NAVIGATE, Hub, xsrf
from pods import Cluster, Node, Pod
from rendered_chart import controller, of_kind, rendered, settings_file

pytestmark = pytest.mark.long

VALUES = {
    "image": {"repository": "a/b"},
    "grants": {"publicKeys": {"hub-1.pem": "-----BEGIN PUBLIC KEY-----\n"}},
    "settings": {"idle_timeout_s": 3600, "settle_s": 0.1},
    "hubAccess": {"enabled": True, "allowedFrom": [{"podSelector": {}}]},
}
# A name for the addresses of both pods, as the cluster's DNS has for a headless Service.
WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


def words(answer: requests.Response) -> str:
    """A page's words."""
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


@pytest.fixture
def site(machine, native, namespaces, wait_until):
    """(Hub, nodes, their controllers): node-1 and node-2, and a Hub with the service that knows them by a name."""
    machine.folder.chmod(0o755)
    cluster = Cluster(machine)
    key = machine.folder / "hub-1.key"
    key.write_bytes(cluster.private)
    nodes = [Node(cluster, name) for name in ("node-1", "node-2")]
    network = f"127.{secrets.randbelow(200) + 1}.{secrets.randbelow(256)}"
    daemons = [
        node.start_controller(controller(VALUES)["args"], settings_file(VALUES), f"{network}.{number}")
        for number, node in enumerate(nodes, 1)
    ]
    for node, daemon in zip(nodes, daemons, strict=True):
        wait_until(
            lambda node=node, daemon=daemon: "API for the Hub" in node.log() or daemon.poll() is not None, 100
        )
        assert daemon.poll() is None, node.log()
    (service,) = of_kind(rendered(VALUES), "Service")
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    hosts = machine.folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{network}.{each} {name}\n" for each in (1, 2)))
    url = f"http://{name}:{service['spec']['ports'][0]['port']}"
    prefix = ["unshare", "--mount", "sh", "-c", WITH_HOSTS, str(hosts)]
    hub = Hub(machine, prefix=prefix, service={"nodes": {"gpus": url}, "grant_key": str(key)}).start()
    yield hub, nodes, daemons
    hub.stop()


def test_an_administrator_sees_and_moves_the_kernels_of_all_nodes(site, wait_until):
    hub, nodes, daemons = site
    kernels = [Pod(node, user).start_kernel() for node, user in zip(nodes, ("ana", "ben"), strict=True)]
    for kernel in kernels:
        assert kernel.cell("100") == "has it"
    admin = hub.log_in("admin")

    def page() -> requests.Response:
        return admin.get(f"{hub.url}/services/affinode/", headers=NAVIGATE, timeout=30)

    # Their shims connect on threads of their own.
    wait_until(lambda: "hub:ana" in (told := words(page())) and "hub:ben" in told)
    seen = words(page())
    first, _, second = seen.partition("node-2")
    assert "node-1" in first and "hub:ana" in first and "hub:ana" not in second and "hub:ben" in second, seen

    machines = re.findall(r'name="node" value="([^"]*)"', page().text)
    form = {"kernel": "user-ana/k", "name": "k", "action": "park", "_xsrf": xsrf(page())}
    act = f"{hub.url}/services/affinode/kernel"
    done = admin.post(act, data={"node": machines[0], **form}, headers=NAVIGATE, timeout=30)
    assert "k is asked to free its GPU." in words(done)
    wait_until(lambda: "GPU freed, 100 MiB safe in RAM" in words(page()).partition("node-2")[0])
    wait_until(lambda: "hub:admin" in words(page()).partition("node-2")[0])
    assert "Nothing yet" in words(page()).partition("node-2")[2]
    assert [kernel.cell("look") for kernel in kernels] == ["same", "same"]

    # An address that the name does not have is asked nothing.
    for node in ("gpus 127.0.0.1", "127.0.0.1", "gpus"):
        assert admin.post(act, data={"node": node, **form}, headers=NAVIGATE, timeout=30).status_code == 404
    assert hub.log_in("ben").get(f"{hub.url}/services/affinode/", headers=NAVIGATE).status_code == 403

    # A node whose controller is gone says so; the other is shown all the same.
    daemons[0].send_signal(signal.SIGKILL)
    wait_until(lambda: "No answer: no controller answers at 127." in words(page()))
    assert "hub:ben" in words(page())
    for kernel in kernels:
        kernel.close()
