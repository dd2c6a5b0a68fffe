"""What pods get from the GPU policy, and that nothing of it keeps one from starting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from traitlets.config import Config

import hub_spawner
from jupyter_affinode.client.grant_signing import make_keys
from jupyter_affinode.node.identity.grants import GrantVerifier

GOLDEN = Path(__file__).with_name("pod.json")
CHART = Path(hub_spawner.__file__).with_name("chart")
IMAGE = "registry.example.org/jupyter-affinode:0.1.0"
PROFILES = [
    {"slug": "cpu", "display_name": "No GPU"},
    {
        "slug": "gpu",
        "display_name": "A GPU that others use, too",
        "kubespawner_override": {
            "gpu_memory": "20GiB",
            "gpu_wait_s": 15,
            "gpu_priority": 3,
            "extra_resource_limits": {"nvidia.com/gpu": "1"},
        },
    },
]


def config(**traits: Any) -> Config:
    """A Hub's configuration as Zero to JupyterHub makes it, with these traits beside."""
    made = Config()
    made.KubeSpawner.update(image="quay.io/jupyter/base-notebook:2026-11-01", uid=1000, fs_gid=100)
    made.KubeSpawner.update({"gpu_image": IMAGE, "profile_list": PROFILES, "mem_limit": "2G", **traits})
    return made


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return found


def environment(which: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in which.get("env", [])}


def mounts(which: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {each["mountPath"]: (each["name"], each.get("readOnly", False)) for each in which["volumeMounts"]}


def added(pod: dict[str, Any], without: dict[str, Any]) -> dict[str, Any]:
    """What one pod has and another has not, by part."""
    ours, theirs = pod["spec"], without["spec"]

    def more(part: str, here: dict[str, Any], there: dict[str, Any]) -> list[Any]:
        return [each for each in here.get(part, []) if each not in there.get(part, [])]

    lists = {part: more(part, ours, theirs) for part in ("initContainers", "volumes")}
    in_container = {part: more(part, container(pod), container(without)) for part in ("env", "volumeMounts")}
    return {**lists, "notebook": in_container}


def test_what_is_added_to_a_pod_is_the_golden_file(pod_of):
    """To change it: write what the assertion shows, and read the difference."""
    pod = pod_of(config(), "gpu")
    assert added(pod, pod_of(config(), "gpu", plain=True)) == json.loads(GOLDEN.read_text())


def test_kubernetes_accepts_the_pod(pod_of, accepted):
    accepted(pod_of(config(), "gpu"))


def test_a_profile_without_gpu_memory_gets_the_pod_of_kubespawner(pod_of):
    nothing = {"initContainers": [], "volumes": [], "notebook": {"env": [], "volumeMounts": []}}
    assert added(pod_of(config(), "cpu"), pod_of(config(), "cpu", plain=True)) == nothing


def test_the_site_has_the_last_word(pod_of):
    """Its hook is called with the pod as the cluster would get it, and takes away what it likes."""
    seen = []

    def hook(spawner, pod):
        seen.extend(each.name for each in pod.spec.init_containers)
        pod.spec.init_containers = None
        return pod

    assert "initContainers" not in pod_of(config(modify_pod_hook=hook), "gpu")["spec"]
    assert seen == ["affinode"]


def test_both_containers_show_a_grant_of_the_server_with_the_profiles_priority(pod_of, tmp_path):
    private, public = make_keys()
    (tmp_path / "hub-1.key").write_bytes(private)
    (tmp_path / "hub-1.pem").write_bytes(public)
    pod = pod_of(config(grant_key=str(tmp_path / "hub-1.key")), "gpu")
    (init,) = pod["spec"]["initContainers"]
    grants = {environment(each)["AFFINODE_GRANT"] for each in (init, container(pod))}
    (claims,) = [GrantVerifier(tmp_path, ["affinode:cluster"]).verify(grant, 1000) for grant in grants]
    assert (claims.user, claims.priority) == ("ana", 3)


def test_a_pod_without_an_image_for_the_init_container_gets_the_socket_alone(pod_of):
    pod = pod_of(config(gpu_image=""), "gpu")
    assert "initContainers" not in pod["spec"]
    assert mounts(container(pod)) == {"/run/affinode": ("affinode-socket", True)}
    assert "AFFINODE_LIBRARY" not in environment(container(pod))


def test_the_init_container_has_no_rights_and_runs_as_the_servers_user(pod_of):
    (init,) = pod_of(config(), "gpu")["spec"]["initContainers"]
    security = init["securityContext"]
    assert security["runAsUser"] == 1000 and security["runAsNonRoot"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False and security["readOnlyRootFilesystem"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "nvidia.com/gpu" not in json.dumps(init["resources"])


@pytest.mark.parametrize("uid", [None, 0])
def test_the_init_container_is_never_root(pod_of, uid):
    from hub_spawner import kubernetes

    (init,) = pod_of(config(uid=uid), "gpu")["spec"]["initContainers"]
    assert init["securityContext"]["runAsUser"] == kubernetes.INIT_UID


def test_what_the_site_mounts_already_is_used_and_not_mounted_twice(pod_of, accepted):
    """An overlay of values that was made before, say."""
    volumes = {"own": {"name": "own", "hostPath": {"path": "/run/affinode"}}}
    seen = {"own": {"name": "own", "mountPath": "/run/affinode/", "readOnly": True}}
    pod = pod_of(config(volumes=volumes, volume_mounts=seen), "gpu")
    (init,) = pod["spec"]["initContainers"]
    assert [each["name"] for each in container(pod)["volumeMounts"]] == ["own", "affinode-shim"]
    assert mounts(init)["/run/affinode"] == ("own", True)
    accepted(pod)


def test_an_init_container_of_the_sites_own_comes_first_and_one_of_our_name_stays(pod_of):
    from hub_spawner import kubernetes

    other = {"name": "chown", "image": "busybox"}
    ours = {"name": kubernetes.INIT_CONTAINER, "image": "theirs"}
    for init_containers, names in (([other], ["chown", "affinode"]), ([other, ours], ["chown", "affinode"])):
        made = pod_of(config(init_containers=init_containers), "gpu")["spec"]["initContainers"]
        assert [each["name"] for each in made] == names
    assert made[1]["image"] == "theirs"


def test_what_the_site_says_of_the_shim_stays(pod_of):
    pod = pod_of(config(environment={"AFFINODE_LIBRARY": "/elsewhere/libaffinode.so"}), "gpu")
    assert environment(container(pod))["AFFINODE_LIBRARY"] == "/elsewhere/libaffinode.so"


def test_a_socket_at_another_place_is_mounted_there_for_both_containers(pod_of):
    pod = pod_of(config(gpu_socket="/run/gpus/node.sock"), "gpu")
    (init,) = pod["spec"]["initContainers"]
    (host,) = [each["hostPath"] for each in pod["spec"]["volumes"] if "hostPath" in each]
    assert host["path"] == "/run/gpus"
    for each in (init, container(pod)):
        assert mounts(each)["/run/gpus"] == ("affinode-socket", True)
        assert environment(each)["AFFINODE_SOCKET"] == "/run/gpus/node.sock"


def test_a_profile_that_would_refuse_a_pod_is_named_in_the_log(pod_of, caplog):
    profile = {"slug": "strict", "display_name": "Strict"}
    override = {"gpu_memory": "20GiB", "on_gpu_full": "refuse"}
    pod = pod_of(config(profile_list=[{**profile, "kubespawner_override": override}]), "strict")
    assert pod["spec"]["initContainers"]
    assert "on_gpu_full='refuse' is not heeded for the pod of ana" in caplog.text


def test_a_pod_to_which_nothing_can_be_added_starts_as_it_is(pod_of, monkeypatch):
    from hub_spawner import kubernetes

    def broken(*_: Any) -> None:
        raise RuntimeError("the site's own")

    monkeypatch.setattr(kubernetes.KubernetesGpuPolicy, "_init_container", broken)
    pod, without = pod_of(config(), "gpu"), pod_of(config(), "gpu", plain=True)
    assert added(pod, without)["initContainers"] == added(pod, without)["volumes"] == []
    assert container(pod)["volumeMounts"] == container(without)["volumeMounts"]


def test_the_values_for_zero_to_jupyterhub_enable_the_policy(pod_of, accepted):
    """Its chart runs `hub.extraConfig` with the spawner's class chosen, and hands the profiles to it."""
    from hub_spawner import kubernetes

    values = yaml.safe_load((CHART / "examples" / "z2jh.yaml").read_text())
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.KubeSpawner.profile_list = values["singleuser"]["profileList"]
    for _, code in sorted(values["hub"]["extraConfig"].items()):
        exec(code, {"c": c})
    assert issubclass(c.JupyterHub.spawner_class, kubernetes.KubernetesGpuPolicy)
    pod = pod_of(c, "gpu")
    (init,), (hubs,) = pod["spec"]["initContainers"], values["hub"]["initContainers"]
    assert init["image"] == hubs["image"]
    (key,) = [each for each in values["hub"]["extraVolumeMounts"] if each["name"] == "affinode-key"]
    assert Path(c.KubeSpawner.grant_key).parent == Path(key["mountPath"])
    assert "initContainers" not in pod_of(c, "cpu")["spec"]
    accepted(pod)
