"""Which provisioner kernels get whose kernelspec names none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jupyter_client
import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from traitlets.config import Config, Configurable

from jupyter_affinode.provisioning.default import LOCAL, OURS, claim_default


def claim(config: dict | None = None, **options: bool):
    parent = Configurable(config=Config(config or {}))
    return claim_default(parent, **options), KernelProvisionerFactory.instance().default_provisioner_name


def test_without_any_configuration_it_is_ours(here, factory):
    default, effective = claim()
    assert default.is_ours and effective == OURS


@pytest.mark.parametrize("name", ["site-provisioner", LOCAL])
def test_a_choice_by_configuration_wins(here, factory, name):
    default, effective = claim({"KernelProvisionerFactory": {"default_provisioner_name": name}})
    assert default.name == effective == name
    assert "configured" in default.reason


def test_a_choice_by_environment_wins(here, factory, monkeypatch):
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", LOCAL)
    default, effective = claim()
    assert default.name == effective == LOCAL
    assert "JUPYTER_DEFAULT_PROVISIONER_NAME" in default.reason


def test_another_extensions_choice_wins(here, factory):
    factory.instance().default_provisioner_name = "their-provisioner"
    default, effective = claim()
    assert default.name == effective == "their-provisioner"


def test_switched_off_it_stays_local(here, factory):
    default, effective = claim(enabled=False)
    assert default.name == effective == LOCAL


def test_an_unregistered_provisioner_is_never_made_the_default(here, factory, monkeypatch):
    monkeypatch.setattr(factory, "provisioners", {})
    monkeypatch.setattr(factory, "_get_all_provisioners", staticmethod(lambda: []))
    default, effective = claim()
    assert default.name == effective == LOCAL
    assert "not registered" in default.reason


def provisioner_of(kernel) -> str:
    return "ours" if "AFFINODE_KERNEL_ID" in kernel.environment() else "other"


@pytest.mark.long
@pytest.mark.parametrize("choice", ["nothing", "configuration", "environment"])
def test_a_real_servers_kernel(native, machine, server, choice):
    if choice == "configuration":
        config = {"KernelProvisionerFactory": {"default_provisioner_name": LOCAL}}
        path = Path(machine.environment["JUPYTER_CONFIG_DIR"], "jupyter_server_config.json")
        path.write_text(json.dumps(config))
    elif choice == "environment":
        machine.environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = LOCAL
    server.start()
    kernel = server.start_kernel()
    assert provisioner_of(kernel) == ("ours" if choice == "nothing" else "other")
    said = [line for line in server.log().splitlines() if "New kernels are started by" in line]
    assert len(said) == 1, said


@pytest.mark.long
def test_a_disabled_extension_leaves_kernels_and_answers_so(native, machine, server):
    server.start("--AffinodeExtension.enabled=False")
    assert provisioner_of(server.start_kernel()) == "other"
    status, answer = server.affinode()
    assert (status, answer["available"], answer["code"]) == (200, False, "disabled")
    assert "switched off" in answer["message"]
    assert machine.node() is None, "no controller was started"


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["execute", "--inplace"],
        ["nbconvert", "--execute", "--inplace", "--to=notebook"],
    ],
)
def test_programs_without_a_server_manage_their_kernels_if_the_environment_says_so(native, machine, words):
    if words[0] == "nbconvert" and jupyter_client.version_info[:3] < (8, 0, 3):
        pytest.skip("nbconvert hangs with this jupyter_client, without us too")
    code = (
        "import os; print(os.environ['AFFINODE_KERNEL_ID'], 'libaffinode' in open('/proc/self/maps').read())"
    )
    notebook = machine.work / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), notebook)
    run = subprocess.run(
        [sys.executable, "-m", "jupyter_core.command", *words, str(notebook)],
        env={**machine.environment, "JUPYTER_DEFAULT_PROVISIONER_NAME": OURS},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    (cell,) = nbformat.read(notebook, as_version=4).cells
    kernel_id, is_mapped = cell.outputs[0].text.split()
    assert is_mapped == "True" and len(kernel_id) == 36
