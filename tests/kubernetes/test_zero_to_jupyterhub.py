"""Zero to JupyterHub's own chart with our values: what it makes of them, and that its network policies let us work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from rendered_chart import CHART, of_kind, rendered

Z2JH = Path(__file__).resolve().parents[2] / "build" / "z2jh" / "jupyterhub"
if not Z2JH.exists():
    pytest.skip("Zero to JupyterHub's chart is not here: make build/z2jh", allow_module_level=True)

VALUES = yaml.safe_load((CHART / "examples" / "z2jh.yaml").read_text())
# What chartpress fills in at a release.
RELEASED = {
    "hub": {"image": {"tag": "4.5.0"}},
    "proxy": {"secretSync": {"image": {"tag": "4.5.0"}}},
}
SERVICE_PORT = 10109


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Several files of values, as Helm merges them."""
    whole: dict[str, Any] = {}
    for each in values:
        for name, value in each.items():
            both = isinstance(value, dict) and isinstance(whole.get(name), dict)
            whole[name] = merged(whole[name], value) if both else value
    return whole


@pytest.fixture(scope="module")
def resources() -> list[dict[str, Any]]:
    return rendered(merged(RELEASED, VALUES), Z2JH)


def one(resources: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in of_kind(resources, kind) if each["metadata"]["name"] == name]
    return found


def labels(resources: list[dict[str, Any]], name: str) -> dict[str, str]:
    found: dict[str, str] = one(resources, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
    return found


def selects(rule: dict[str, Any], pod: dict[str, str]) -> bool:
    """Whether a rule's `from` or `to` selects a pod of the same namespace."""
    return any(
        each.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= pod.items()
        for each in [*rule.get("from", []), *rule.get("to", [])]
    )


@pytest.mark.parametrize("example", ["z2jh.yaml", "z2jh-dra.yaml"])
def test_its_schema_knows_every_value(example):
    schema = yaml.safe_load((Z2JH / "values.schema.yaml").read_text())
    defaults = yaml.safe_load((Z2JH / "values.yaml").read_text())
    values = merged(defaults, RELEASED, yaml.safe_load((CHART / "examples" / example).read_text()))
    assert list(jsonschema.Draft7Validator(schema).iter_errors(values)) == []


def test_kubernetes_accepts_what_it_makes(resources, accepted):
    assert {"Deployment", "Service", "NetworkPolicy"} <= {each["kind"] for each in resources}
    for resource in resources:
        accepted(resource)


def test_the_hubs_pod_has_the_packages_and_the_key(resources):
    pod = one(resources, "Deployment", "hub")["spec"]["template"]["spec"]
    assert "affinode" in [each["name"] for each in pod["initContainers"]]
    (hub,) = pod["containers"]
    mounts = {each["mountPath"]: each.get("readOnly") for each in hub["volumeMounts"]}
    assert mounts["/srv/affinode"] is mounts["/etc/affinode"] is True
    assert {"name": "PYTHONPATH", "value": "/srv/affinode"} in hub["env"]
    assert hub["securityContext"]["runAsUser"] == 1000


def test_the_proxy_and_nothing_else_reaches_the_page(resources):
    (port,) = [
        each for each in one(resources, "Service", "hub")["spec"]["ports"] if each["name"] == "affinode"
    ]
    assert port["port"] == port["targetPort"] == SERVICE_PORT
    rules = one(resources, "NetworkPolicy", "hub")["spec"]["ingress"]
    (rule,) = [each for each in rules if SERVICE_PORT in [port["port"] for port in each["ports"]]]
    assert selects(rule, labels(resources, "proxy"))
    server = {"app": "jupyterhub", "component": "singleuser-server", "release": "gpus"}
    assert not selects(rule, server | {"hub.jupyter.org/network-access-hub": "true"})
    # Servers have their grants renewed through the proxy, as they may by themselves.
    egress = one(resources, "NetworkPolicy", "singleuser")["spec"]["egress"]
    assert any(selects(each, labels(resources, "proxy")) for each in egress)


def test_the_hubs_pod_alone_is_let_in_to_the_controllers_as_the_charts_values_suggest(resources):
    suggested = (CHART / "values.yaml").read_text().partition("allowedFrom: []\n#    - namespaceSelector")[2]
    lines = ["- namespaceSelector" + suggested.partition("\n\n")[0]]
    rule = {"from": yaml.safe_load("\n".join(lines).replace("\n#    ", "\n"))}
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "jhub"}
    assert selects(rule, labels(resources, "hub"))
    assert not selects(rule, labels(resources, "proxy"))
