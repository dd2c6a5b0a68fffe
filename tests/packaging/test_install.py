"""After a plain install new kernels are ours; a site's own choice wins; after uninstalling, kernels start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import Installation
from live_machine import Machine
from live_server import JupyterServer

PROVISIONER = "KernelProvisionerFactory"

# The first test that asks for the wheel compiles it.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def installed_server(
    machine: Machine, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JupyterServer]:
    """A server of the installation, not yet started; its kernels are of the installation too."""
    monkeypatch.setattr("sys.executable", str(installation.python))
    machine.environment.pop("PYTHONPATH", None)  # which could lead to the sources
    server = JupyterServer(machine)
    yield server
    server.stop()


def kernel_environment(server: JupyterServer) -> dict[str, str]:
    """The environment of a new kernel, which runs a cell."""
    kernel = server.start_kernel()
    assert kernel.run("print(6 * 7)").text == "42\n"
    return kernel.environment()


def test_its_dependencies_are_met_and_it_imports(installation: Installation) -> None:
    problems = installation.pip("check").stdout
    assert "jupyter-affinode" not in problems
    code = "import jupyter_affinode, hub_spawner; print(jupyter_affinode.__file__)"
    where = subprocess.run(
        [installation.python, "-I", "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert Path(where.strip()).is_relative_to(installation.prefix)


def test_the_shim_finds_its_program_executable(installation: Installation) -> None:
    program = installation.packages / "jupyter_affinode/lib/affinode-gpu-memory"
    said = subprocess.run([program], capture_output=True, text=True)
    assert said.returncode == 2 and "usage" in said.stderr


def test_a_new_kernel_is_managed_without_configuration(
    installed_server: JupyterServer, installation: Installation
) -> None:
    environment = kernel_environment(installed_server.start())
    shim = installation.packages / "jupyter_affinode/lib/libaffinode.so"
    assert str(shim) in environment["LD_PRELOAD"].split(":")
    assert environment["AFFINODE_LIBRARY"] == str(shim)


def test_the_doctor_runs(installation: Installation, machine: Machine) -> None:
    """As the subcommand `jupyter affinode`, that an installation puts beside its `jupyter`."""
    said = subprocess.run(
        [installation.prefix / "bin" / "jupyter-affinode", "doctor", "--json"],
        env=machine.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(said.stdout)["checks"], said.stderr


def test_a_provisioner_that_the_site_configures_stays(
    installed_server: JupyterServer, machine: Machine
) -> None:
    configuration = {PROVISIONER: {"default_provisioner_name": "local-provisioner"}}
    folder = Path(machine.environment["JUPYTER_CONFIG_DIR"])
    (folder / "jupyter_server_config.json").write_text(json.dumps(configuration))
    assert "AFFINODE_KERNEL_ID" not in kernel_environment(installed_server.start())


def test_a_provisioner_that_the_environment_names_stays(
    installed_server: JupyterServer, machine: Machine
) -> None:
    machine.environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "local-provisioner"
    assert "AFFINODE_KERNEL_ID" not in kernel_environment(installed_server.start())


def test_after_uninstalling_kernels_start(
    installed_server: JupyterServer, installation: Installation, machine: Machine
) -> None:
    """Those of a wrapped kernelspec too, and a program that a left-over setting does not concern."""
    script = installation.prefix / "bin" / "jupyter-affinode"
    wrapped = subprocess.run(
        [script, "kernelspec", "wrap", "python3"], env=machine.environment, capture_output=True, text=True
    )
    assert wrapped.returncode == 0, wrapped.stderr
    removed = installation.pip("uninstall", "--yes", "jupyter-affinode")
    assert removed.returncode == 0, removed.stderr
    assert [path for path in installation.prefix.rglob("*affinode*") if not path.is_symlink()] == []
    environment = kernel_environment(installed_server.start())
    assert "LD_PRELOAD" not in environment and "AFFINODE_KERNEL_ID" not in environment
    kernel = installed_server.start_kernel("python3-affinode")
    assert kernel.run("print(6 * 7)").text == "42\n"
    assert "LD_PRELOAD" not in kernel.environment()
    assert f"affinode: not managed: there is no {script} any more" in installed_server.log()
