"""The lines about free room and warm kernels, where a user chooses a server; without a controller and such kernels the
page is as it was.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from gpu_node import GIB, gpu_node
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets.config import Config

from hub_spawner import free_room as free_room_module
from hub_spawner.enabling import derived
from hub_spawner.free_room import FreeRoom, free_room
from hub_spawner.nodes import NodePicture


@pytest.fixture(scope="module")
def node():
    """A machine with two GPUs and three users; who asks it waits up to a minute."""
    with gpu_node(idle_timeout_s=0.1) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_room_module, "ANSWER_WITHIN_S", 60.0)
        yield made


def form_of(spawner_class, socket, **spawner):
    """The form that a user gets to see."""
    config = Config()
    config.GpuPolicy.gpu_socket = str(socket)
    for name, value in spawner.items():
        config.Spawner[name] = value

    async def get():
        mock = {"_mock": True} if spawner_class.__name__ == "KubeSpawner" else {}
        return await derived(spawner_class)(config=config, **mock).get_options_form()

    return asyncio.run(get())


def test_a_plain_form_has_the_line_before_it(node):
    form = form_of(
        SimpleLocalProcessSpawner, node.machine.socket, gpu_memory="20GiB", options_form="<select></select>"
    )
    assert form.startswith('<p class="affinode-free-room">GPU: ')
    assert form.splitlines()[0].endswith(" of 2 with room for 20 GiB</p>")
    assert form.endswith("<select></select>")


def test_a_profile_page_of_kubespawner_has_it_too(node, monkeypatch, tmp_path):
    from kubernetes_asyncio.config import (
        kube_config,  # a second, which other processes of pytest need not take
    )
    from kubespawner import KubeSpawner

    config = tmp_path / "kubeconfig"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}],"
        " clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: x, user: {}}]}"
    )
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    profiles = [{"display_name": "Small"}, {"display_name": "Large", "kubespawner_override": {}}]
    form = form_of(KubeSpawner, node.machine.socket, profile_list=profiles, gpu_room_at="here")
    assert form.startswith('<p class="affinode-free-room">GPU: room for 78 GiB on one of 2</p>')
    assert "Large" in form


@pytest.mark.parametrize("socket", ["/nowhere/node.sock", ""])
def test_without_a_controller_the_form_is_as_it_was(socket):
    assert (
        form_of(SimpleLocalProcessSpawner, socket or "/", options_form="<select></select>")
        == "<select></select>"
    )


def test_where_there_is_nothing_to_choose_nothing_is_shown(node):
    assert form_of(SimpleLocalProcessSpawner, node.machine.socket, gpu_memory="20GiB") == ""


def kernel(gpu, size, *, residency="resident", eligible=True):
    """A kernel's JSON as far as room is concerned."""
    uses = [{"uuid": gpu, "resident_bytes": size}]
    return {"residency": residency, "eligible": eligible, "gpus": uses}


def picture(free, kernels, *, available=1000):
    """A machine: free bytes by GPU."""
    gpus = [{"uuid": uuid, "free_bytes": size} for uuid, size in free.items()]
    host = {"available_bytes": available, "reserve_bytes": 100}
    return NodePicture("n", {"gpus": gpus, "host": host, "queue": ["a", "b"], "simulated": False}, kernels)


def test_what_idle_kernels_would_give_back_counts_as_far_as_host_memory_goes():
    kernels = [
        kernel("A", 300),
        kernel("A", 500, eligible=False),  # computes, or is held
        kernel("B", 2000),
        kernel("B", 400, residency="parked"),
    ]
    machines = [
        picture({"A": 10, "B": 20, "C": None}, kernels),
        NodePicture("gone", problem="it does not answer"),
    ]
    assert free_room(machines) == FreeRoom((920, 310), 2, False)


@pytest.mark.parametrize(
    ("room", "size", "line"),
    [
        (FreeRoom((30 * GIB, 8 * GIB, 0), 2, False), 20 * GIB, "GPU: 1 of 3 with room for 20 GiB; 2 waiting"),
        (FreeRoom((30 * GIB,), 0, True), 20 * GIB, "GPU: 1 of 1 with room for 20 GiB (simulated)"),
        (FreeRoom((30 * GIB, 8 * GIB), 1, False), 0, "GPU: room for 30 GiB on one of 2; 1 waiting"),
        (FreeRoom((), 5, False), 20 * GIB, ""),
    ],
)
def test_the_line(room, size, line):
    assert room.text(size) == line


@pytest.fixture
def kernelspecs(tmp_path):
    """`kernelspecs("course", {"count": 1})`: make a kernelspec with this section on warm kernels; return the folder
    above it.
    """

    def make(name, warm):
        (tmp_path / name).mkdir()
        model = {"argv": [], "display_name": f"<{name}>", "language": "python"}
        model["metadata"] = {} if warm is None else {"affinode": {"warm": warm}}
        (tmp_path / name / "kernel.json").write_text(json.dumps(model))
        return str(tmp_path)

    return make


def warm_line_of(folders):
    """Return the form's line about warm kernels; the spawner's servers start on another machine."""
    form = form_of(
        SimpleLocalProcessSpawner,
        "/",
        options_form="<select></select>",
        gpu_room_at="nowhere",
        warm_kernelspecs=folders,
    )
    assert form.endswith("<select></select>")
    return form.removesuffix("<select></select>")


def test_kernels_that_are_kept_ready_are_named(kernelspecs, tmp_path):
    kernelspecs("plain", None)
    kernelspecs("none", {"count": 0})
    assert warm_line_of([str(tmp_path)]) == ""
    kernelspecs("model", {"count": 2, "prelude": "prelude.py"})
    folder = kernelspecs("course", {})
    assert warm_line_of([folder, str(tmp_path / "missing"), folder]) == (
        '<p class="affinode-warm-kernels">Kernels kept ready: &lt;course&gt;, &lt;model&gt; (2).'
        " They are made once your server has started.</p>\n"
    )


def test_a_kernelspec_that_cannot_be_read_is_left_out(kernelspecs, tmp_path, caplog):
    kernelspecs("many", {"count": "many"})
    folder = kernelspecs("course", {})
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "kernel.json").write_text("{")
    (tmp_path / "file").touch()
    assert "ready: &lt;course&gt;." in warm_line_of([folder, str(tmp_path / "file")])
    assert all(
        name in caplog.text for name in ("many/kernel.json", "cut/kernel.json", "kernelspecs cannot be read")
    )


def test_by_default_the_environment_of_the_hub_says_it(kernelspecs, tmp_path, monkeypatch):
    kernelspecs("kernels", None)
    monkeypatch.setattr("hub_spawner.spawner_mixin.ENV_JUPYTER_PATH", [str(tmp_path)])
    (tmp_path / "kernels" / "course").mkdir()
    (tmp_path / "kernels" / "course" / "kernel.json").write_text('{"metadata": {"affinode": {"warm": {}}}}')
    assert "ready: course." in form_of(SimpleLocalProcessSpawner, "/", options_form="<select></select>")
