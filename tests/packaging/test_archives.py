"""What the sdist and the wheel carry, and what they ask for."""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
LAB_EXTENSION = "share/jupyter/labextensions/jupyter-affinode"

# The first test that asks for the wheel compiles it.
pytestmark = pytest.mark.timeout(400)


def imported_packages(folder: Path) -> set[str]:
    """The top-level names that the Python files of a folder import, the standard library's left out."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


def test_every_import_is_a_declared_dependency_and_every_dependency_is_imported() -> None:
    requirements = map(Requirement, metadata.requires("jupyter-affinode") or [])
    declared = {one.name.replace("_", "-").lower() for one in requirements if "extra" not in str(one.marker)}
    kernels_own = {"IPython"}  # imported inside kernels, whose environment has it
    optional = {"jwt", "cryptography"}  # of the extra "grants", imported where a grant is
    owners = metadata.packages_distributions()
    imported = (
        imported_packages(REPOSITORY / "jupyter_affinode") - kernels_own - optional - {"jupyter_affinode"}
    )
    needed = {owner.replace("_", "-").lower() for name in imported for owner in owners[name]}
    assert needed == declared


def test_the_wheel_is_for_this_platform_and_any_python_3(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")


def test_the_wheel_carries_every_part(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    (data,) = {name.split("/")[0] for name in names if ".data/" in name}
    wanted = {
        "hub_spawner/__init__.py",
        "jupyter_affinode/server/schemas/kernel_residency.yaml",
        "jupyter_affinode/server/schemas/node.yaml",
        "jupyter_affinode/kernel/startup.py",
        "jupyter_affinode/lib/affinode-gpu-memory",
        "jupyter_affinode/lib/libaffinode-sim-cuda.so",
        "jupyter_affinode/lib/libaffinode-sim-nvml.so",
        "jupyter_affinode/lib/libaffinode.so",
        "jupyter_affinode/node/api/openapi.json",
        f"{data}/data/{LAB_EXTENSION}/install.json",
        f"{data}/data/{LAB_EXTENSION}/package.json",
        f"{data}/data/{LAB_EXTENSION}/static/style.js",
        f"{data}/data/etc/jupyter/jupyter_server_config.d/jupyter_affinode.json",
    }
    assert wanted <= set(names)
    packages = {name.split("/")[0] for name in names} - {data}
    assert {name for name in packages if not name.endswith(".dist-info")} == {
        "hub_spawner",
        "jupyter_affinode",
    }


def test_the_sdist_carries_the_sources_and_the_built_extension(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "hatch_build.py",
        "jupyter_affinode/labextension/package.json",
        "labextension/src/index.ts",
        "package.json",
        "shim/Makefile",
        "shim/gpu_memory/main.c",
        "shim/tools/entry_points.rules",
        "shim/sim/sim.mk",
        "yarn.lock",
    } <= names
    assert not [name for name in names if name.startswith(("node_modules", ".venv", "shim/build"))]
    assert not [name for name in names if name.endswith((".so", "/affinode-gpu-memory"))]


def test_all_parts_have_the_same_version(wheel: Path) -> None:
    lab = json.loads((REPOSITORY / "package.json").read_text(encoding="utf-8"))["version"]
    assert wheel.name.split("-")[1] == lab
