"""The chart of the nodes' controller: what Helm makes of it, what Kubernetes accepts, and what its pods may not do."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rendered_chart import CHART, controller, helm, of_kind, pod, rendered, settings_file
from traitlets.config import Config

from jupyter_affinode.node.app import NodeController

KEY = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n"
IMAGE = {"image": {"repository": "registry.example.org/jupyter-affinode"}}
LEAST = {**IMAGE, "grants": {"required": False}}
MOST = {
    **IMAGE,
    "parkedMemoryGiB": 64,
    "grants": {"publicKeys": {"hub-1.pem": KEY}},
    "settings": {"idle_timeout_s": 600, "when_full": "time_slice", "hold_bytes_max": 17179869184},
    "metrics": {
        "enabled": True,
        "allowedFrom": [{"namespaceSelector": {"matchLabels": {"name": "metrics"}}}],
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"},
    },
    "hubAccess": {
        "enabled": True,
        "allowedFrom": [{"podSelector": {"matchLabels": {"component": "hub"}}}],
    },
    "dra": {"enabled": True, "namespaces": ["users", "others"]},
    "gpu": {"access": "claim"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "priorityClassName": "system-node-critical",
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "resources": {"cpu": {"limit": "2"}},
}
ALL_VALUES = {"least": LEAST, "most": MOST, "no NVML": {**LEAST, "gpu": {"access": "none"}}}


@pytest.mark.parametrize("values", ALL_VALUES.values(), ids=ALL_VALUES)
def test_helm_finds_nothing_to_say(values):
    result = helm.lint(CHART, values=values, strict=True)
    messages = [message for message in result["messages"] if "icon is recommended" not in str(message)]
    assert messages == []


@pytest.mark.parametrize("values", ALL_VALUES.values(), ids=ALL_VALUES)
def test_kubernetes_accepts_what_is_made(values, accepted):
    resources = rendered(values)
    kinds = {resource["kind"] for resource in resources}
    assert {"DaemonSet", "ServiceAccount", "ConfigMap", "NetworkPolicy"} <= kinds
    for resource in resources:
        if resource["kind"] == "PodMonitor":  # the Prometheus operator's
            continue
        if resource["apiVersion"] != "resource.k8s.io/v1" or accepted.release != "1.32":  # it came with 1.34
            accepted(resource)


@pytest.mark.parametrize("values", ALL_VALUES.values(), ids=ALL_VALUES)
def test_the_controllers_pod_has_no_rights_on_its_node(values):
    spec, container = pod(values), controller(values)
    assert not {"hostPID", "hostNetwork", "hostIPC", "shareProcessNamespace"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    hosts = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
    assert hosts == ["/run/affinode", "/var/lib/affinode"]
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


def test_a_pod_that_has_kernels_hibernate_at_its_end_is_given_the_time_for_that():
    seconds = [
        pod({**LEAST, "settings": settings})["terminationGracePeriodSeconds"]
        for settings in ({}, {"hibernate_at_end_s": 100})
    ]
    assert seconds == [15, 115]


def test_no_network_reaches_the_controller_but_those_of_the_metrics_and_of_the_hub():
    (closed,) = of_kind(rendered(LEAST), "NetworkPolicy")
    assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert closed["spec"]["ingress"] == closed["spec"]["egress"] == []
    assert "ports" not in controller(LEAST)
    assert not [each for each in controller(LEAST)["args"] if "metrics" in each or "--api" in each]
    assert not of_kind(rendered(LEAST), "Service")
    (open_to_some,) = of_kind(rendered(MOST), "NetworkPolicy")
    assert open_to_some["spec"]["egress"] == []
    assert open_to_some["spec"]["ingress"] == [
        {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": MOST["metrics"]["allowedFrom"]},
        {"ports": [{"port": "hub", "protocol": "TCP"}], "from": MOST["hubAccess"]["allowedFrom"]},
    ]
    selected = open_to_some["spec"]["podSelector"]["matchLabels"]
    (daemons,) = of_kind(rendered(MOST), "DaemonSet")
    assert selected.items() <= daemons["spec"]["template"]["metadata"]["labels"].items()


def test_the_hubs_service_finds_each_nodes_controller_by_one_name():
    (service,) = of_kind(rendered(MOST), "Service")
    assert service["spec"]["clusterIP"] == "None", (
        "a name for all addresses, and no address that stands for any"
    )
    (daemons,) = of_kind(rendered(MOST), "DaemonSet")
    assert service["spec"]["selector"].items() <= daemons["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in controller(MOST)["ports"]}
    assert ports[port["targetPort"]] == port["port"] == 9714
    assert {"--api-ip=0.0.0.0", "--api-port=9714", "--machine-name=$(NODE_NAME)"} <= set(
        controller(MOST)["args"]
    )
    (name,) = [each for each in controller(MOST)["env"] if each["name"] == "NODE_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


@pytest.mark.parametrize("values", ALL_VALUES.values(), ids=ALL_VALUES)
def test_the_controller_understands_its_arguments_and_settings(values, tmp_path, monkeypatch):
    """The program itself reads the rendered file and command line, and knows every name in them."""
    (tmp_path / "jupyter_affinode_config.py").write_text(settings_file(values))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    app = NodeController()
    app.initialize(controller(values)["args"])
    assert app.config.NodeController.keys() <= set(app.trait_names())
    assert (app.system, app.socket) == (True, "/run/affinode/node.sock")
    for name, value in values.get("settings", {}).items():
        assert getattr(app, name) == value
    assert (app.lot_bytes or 0) == values.get("parkedMemoryGiB", 0) << 30
    has_keys = "publicKeys" in values["grants"]
    assert app.require_grants is has_keys
    assert app.grant_audiences == ["affinode:cluster"] or not has_keys
    assert app.metrics_port == (9713 if "metrics" in values else 0)
    assert app.api_port == (9714 if "hubAccess" in values else 0)


def test_a_setting_is_a_value_and_never_code():
    text = '\'"""); raise SystemExit(3) #\n\\'
    found = Config()
    exec(settings_file({**LEAST, "settings": {"admin_group": text}}), {"get_config": lambda: found})
    assert found.NodeController.admin_group == text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "/image/repository"),
        ({**LEAST, "parkedMemoryGiB": "64Gi"}, "/parkedMemoryGiB"),
        ({**LEAST, "parkedMemory": 64}, "parkedMemory"),
        ({**LEAST, "gpu": {"access": "privileged"}}, "/gpu/access"),
        ({**IMAGE, "grants": {"publicKeys": {"hub-1.pem": KEY.replace("PUBLIC", "PRIVATE")}}}, "hub-1.pem"),
        ({**LEAST, "settings": {"lot_bytes": 1}}, "lot_bytes"),
        ({**LEAST, "settings": {"idle_timeout": 600}}, "idle_timeout"),
        ({**LEAST, "settings": {"idle_timeout_s": "ten"}}, "/settings/idle_timeout_s"),
        ({**LEAST, "settings": {"when_full": "waits"}}, "/settings/when_full"),
        ({**LEAST, "grants": {"required": None}}, "/grants"),
        ({**LEAST, "metrics": {"podMonitor": {"interval": "soon"}}}, "/metrics/podMonitor/interval"),
        ({**LEAST, "metrics": {"port": 80}}, "/metrics/port"),
        ({**MOST, "hubAccess": {"enabled": True}}, "/hubAccess/allowedFrom"),
        ({**MOST, "hubAccess": {"enabled": True, "allowedFrom": [{}]}}, "/hubAccess/allowedFrom"),
        ({**MOST, "grants": {}}, "/grants/publicKeys"),
        ({**LEAST, "hostPaths": {"socket": "run"}}, "/hostPaths/socket"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values, said):
    with pytest.raises(helm.HelmValuesError, match=said):
        rendered(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (IMAGE, "grants.required"),
        ({**IMAGE, "grants": {"required": True}}, "grants.required"),
        ({**IMAGE, "grants": {"required": True, "publicKeys": {}}}, "grants.required"),
        ({**LEAST, "metrics": {"podMonitor": {"enabled": True}}}, "metrics.enabled"),
    ],
)
def test_values_that_would_protect_or_show_nothing_are_refused_with_what_to_change(values, said):
    with pytest.raises(helm.HelmRenderError, match=said):
        rendered(values)


def test_a_cluster_without_dra_is_told_so(tmp_path):
    """Helm as a Python package asks no cluster, and knows the newest; an older one lacks the API."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(helpers.read_text().replace('resource.k8s.io/v1")', 'resource.k8s.io/v9")'))
    with pytest.raises(helm.HelmRenderError, match=r"Kubernetes 1\.34"):
        rendered(MOST, chart)
    assert rendered(LEAST, chart)


def test_prometheus_scrapes_each_controller_and_calls_it_by_its_nodes_name():
    (monitor,) = of_kind(rendered(MOST), "PodMonitor")
    (daemons,) = of_kind(rendered(MOST), "DaemonSet")
    template = daemons["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in controller(MOST)["ports"]]
    assert endpoint["interval"] == "30s"
    assert endpoint["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}
    ]
    assert not of_kind(rendered(LEAST), "PodMonitor")


def test_every_value_has_a_place_in_the_schema_and_every_place_a_value():
    """Of `global`, Helm's own, and the limit of the processor there is no default; settings have the controller's."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def differing(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        if schema.get("additionalProperties", True) is not False:
            return
        yield from (f"{path}/{name}" for name in schema["properties"].keys() ^ value.keys())
        for name in schema["properties"].keys() & value.keys():
            yield from differing(schema["properties"][name], value[name], f"{path}/{name}")

    found = {path for path in differing(schema, values, "") if not path.startswith("/settings/")}
    assert found == {"/global", "/resources/cpu/limit"}


def test_the_hub_is_told_the_name_that_the_documented_installation_has():
    """`helm upgrade --install affinode … --namespace affinode`"""
    (service,) = of_kind(rendered(MOST, name="affinode", namespace="affinode"), "Service")
    (port,) = service["spec"]["ports"]
    url = f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
    assert url == "http://affinode-jupyter-affinode.affinode.svc:9714"
    assert url in (CHART / "examples" / "z2jh.yaml").read_text()


def test_a_pod_that_shares_a_gpu_by_dra_names_the_template_that_the_chart_makes(pod_of, accepted):
    templates = of_kind(rendered(MOST), "ResourceClaimTemplate")
    shared = [each for each in templates if each["metadata"]["name"] == "jupyter-affinode-gpu"]
    assert {each["metadata"]["namespace"] for each in shared} == {"users", "others"}
    (request,) = shared[0]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"shares": "1"}}
    assert "adminAccess" not in request["exactly"], "users' pods are not administrators'"
    config = Config()
    values = yaml.safe_load((CHART / "examples" / "z2jh-dra.yaml").read_text())
    config.KubeSpawner.profile_list = values["singleuser"]["profileList"]
    made = pod_of(config, "gpu")
    assert made["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": shared[0]["metadata"]["name"]}
    ]
    (notebook,) = made["spec"]["containers"]
    assert notebook["resources"]["claims"] == [{"name": "gpu"}]
    accepted(made)


def test_the_controllers_own_claim_takes_no_gpu_from_users():
    (own,) = [
        each
        for each in of_kind(rendered(MOST), "ResourceClaimTemplate")
        if each["metadata"]["name"] == pod(MOST)["resourceClaims"][0]["resourceClaimTemplateName"]
    ]
    (request,) = own["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["adminAccess"] is True and request["exactly"]["allocationMode"] == "All"
    assert "NVIDIA_VISIBLE_DEVICES" not in str(controller(MOST)["env"])


@pytest.mark.parametrize("probed", ["livenessProbe", "readinessProbe"])
def test_the_probe_ends_well_while_the_controller_answers(machine, probed):
    *python, script = controller(LEAST)[probed]["exec"]["command"]
    probe = [*python, script.replace("/run/affinode/node.sock", str(machine.socket))]
    assert subprocess.run(probe, capture_output=True, check=False).returncode != 0
    machine.start_controller()
    assert subprocess.run(probe, capture_output=True, check=False).returncode == 0
