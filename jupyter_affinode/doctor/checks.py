"""What works on this machine and why not: the checks behind `jupyter affinode doctor` and the panel's help.

Each check looks at the real thing, in a child process where looking leaves something behind (a loaded
driver), and says in one line what it found and, if anything is wrong, what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_core.paths import jupyter_path

from .. import environment
from .._version import __version__
from ..client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ..client.errors import refusal_advice
from ..provisioning.default import LOCAL, OURS, DefaultProvisioner, site_choice
from ..provisioning.preload import Unmanaged, preloadable_path, prove_preload
from ..python_command import code_command
from ..units import bytes_in_words
from .check import Check
from .host_checks import host_checks
from .image_checks import image_checks

CHILD_TIMEOUT_S = 60.0
LAB_EXTENSION = "jupyter-affinode"
NO_DRIVER = "there is no NVIDIA driver here, so no GPU to manage"

SHIM_CHILD = """
import ctypes
text = ctypes.create_string_buffer(64)
ctypes.CDLL(None).affinode_version(text, ctypes.c_size_t(64))
print(text.value.decode())
"""
DRIVER_CHILD = """
import ctypes, json
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"absent": str(error)}))
    raise SystemExit
found = {"init": driver.cuInit(0), "gpus": []}
with open("/proc/self/maps") as maps:
    found["simulated"] = "libaffinode-sim-cuda" in maps.read()
if found["init"] == 0:
    number, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    driver.cuDriverGetVersion(ctypes.byref(number))
    found["version"] = number.value
    driver.cuDeviceGetCount(ctypes.byref(number))
    for index in range(number.value):
        number = ctypes.c_int()
        name = ctypes.create_string_buffer(128)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, 128, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        driver.cuDeviceGetAttribute(ctypes.byref(number), 18, device)  # CU_DEVICE_ATTRIBUTE_INTEGRATED
        integrated = bool(number.value)
        found["gpus"].append({"name": name.value.decode(), "bytes": size.value, "integrated": integrated})
print(json.dumps(found))
"""
NVML_CHILD = """
import json, pynvml
try:
    pynvml.nvmlInit()
    print(json.dumps({"version": pynvml.nvmlSystemGetDriverVersion(), "gpus": pynvml.nvmlDeviceGetCount()}))
except pynvml.NVMLError as error:
    print(json.dumps({"absent": str(error)}))
"""


def report(server: DefaultProvisioner | None = None) -> dict[str, Any]:
    """Return all checks: {"version", "ok", "checks": [{"name", "level", "group", "text", "advice", "details"}]}.

    `server` is the default provisioner of the running server; without it, the one that the next server would
    choose. Takes a second or two; call it outside an event loop's thread.
    """
    checks = list(examine(server))
    return {
        "version": __version__,
        "ok": all(check.level != "fail" for check in checks),
        "checks": [check.as_json() for check in checks],
    }


def examine(server: DefaultProvisioner | None = None) -> Iterator[Check]:
    """Yield the checks; each one comes after those that it depends on."""
    yield _platform()
    yield _shim()
    driver = [*_driver()]
    yield from driver
    yield _nvml(is_driver_absent=driver[0].text == NO_DRIVER)
    node = _node()
    yield from _controller(node)
    yield _provisioner(server)
    yield _lab_extension()
    yield from host_checks(node["settings"].get("lot_bytes") or 0 if isinstance(node, dict) else 0)
    yield from image_checks()


def _platform() -> Check:
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        return Check("platform", "ok", f"Linux {platform.release()} on {machine}")
    advice = "Kernels run as usual here, without GPU management; Linux on x86-64 or aarch64 is needed for it."
    return Check("platform", "fail", f"{system} on {machine}", advice)


def _shim() -> Check:
    path = environment.shim_path()
    if path is None:
        advice = "Install a wheel for this platform, or build it: make -C shim."
        return Check("shim", "fail", f"no {environment.SHIM_NAME} in {environment.library_folder()}", advice)
    try:
        library = preloadable_path(path)
        for program in (None, sys.executable):
            prove_preload(library, program)
        said = _child(SHIM_CHILD, LD_PRELOAD=str(library), AFFINODE_DISABLE="1")
    except (Unmanaged, ChildFailed) as error:
        return Check("shim", "fail", str(error), "Kernels start without it. Reinstall jupyter-affinode.")
    version = said.strip()
    if version != __version__:
        text = f"{library} is version {version}, this package is {__version__}"
        return Check("shim", "warn", text, "Reinstall jupyter-affinode, or rebuild: make -C shim.")
    return Check(
        "shim", "ok", f"version {version} loads into this Python", details=f"{library}, {sys.executable}"
    )


def is_driver_absent() -> bool:
    """Return whether this machine has no NVIDIA driver, and so no GPU to manage."""
    return next(_driver()).text == NO_DRIVER


def _driver() -> Iterator[Check]:
    try:
        found = json.loads(_child(DRIVER_CHILD, **_simulated()))
    except environment.SimulationRefused as refused:
        yield Check("driver", "fail", f"the simulated GPU was refused: {refused}", "Unset AFFINODE_SIM.")
        return
    except (ChildFailed, ValueError) as error:
        yield Check("driver", "fail", f"looking for the CUDA driver failed: {error}", "Try nvidia-smi.")
        return
    if "absent" in found:
        advice = "To try it: jupyter affinode simulate -- jupyter lab"
        yield Check("driver", "warn", NO_DRIVER, advice, found["absent"])
        return
    kind = "simulated driver" if found["simulated"] else "CUDA driver"
    if found["init"] != 0:
        text = f"the {kind} is here, but cuInit says error {found['init']}"
        yield Check("driver", "fail", text, "Look at nvidia-smi; in a container, ask for the GPU.")
        return
    version = f"{found['version'] // 1000}.{found['version'] % 1000 // 10}"
    yield Check("driver", "ok", f"{kind}, CUDA {version}")
    for gpu in found["gpus"]:
        suffix = " (simulated)" if found["simulated"] else ""
        text = f"{gpu['name']}: {bytes_in_words(gpu['bytes'])}{suffix}"
        if gpu["integrated"]:
            advice = "Kernels run on it as without jupyter-affinode. What they have is shown."
            yield Check("gpu", "warn", f"{text}; its memory is the host's, so none is freed", advice)
        else:
            yield Check("gpu", "ok", text)
    if not found["gpus"]:
        yield Check("gpu", "fail", "the driver has no GPU", "Look at CUDA_VISIBLE_DEVICES.")


def _nvml(*, is_driver_absent: bool) -> Check:
    without = "Without NVML the memory of programs that are not managed cannot be seen."
    try:
        found = json.loads(_child(NVML_CHILD, **_simulated()))
    except (ChildFailed, ValueError, environment.SimulationRefused) as error:
        return Check("nvml", "warn", f"NVML cannot be asked: {error}", without)
    if "absent" in found:
        level = "ok" if is_driver_absent else "warn"  # it comes with the driver, which is named already
        return Check("nvml", level, f"no NVML here: {found['absent']}", without, is_detail=True)
    count = found["gpus"]
    return Check("nvml", "ok", f"driver {found['version']}, {count} GPU{'' if count == 1 else 's'}")


def _node() -> dict[str, Any] | str | ControllerRefused:
    """Return the controller's description of the machine, or why there is none."""
    try:
        return asyncio.run(ControllerClient().node())
    except ControllerUnavailable as error:
        return str(error)
    except ControllerRefused as refused:
        return refused


def _controller(node: dict[str, Any] | str | ControllerRefused) -> Iterator[Check]:
    """Check the controller and the host memory that it sees; without a controller, what /proc/meminfo says."""
    if isinstance(node, ControllerRefused):
        yield Check("controller", "fail", f"it does not answer you: {node}", refusal_advice(node.slug))
        yield _host_memory(_available_bytes(), 0)
        return
    if isinstance(node, str):
        yield Check("controller", "ok", "none runs yet; the first managed kernel starts one", details=node)
        yield _host_memory(_available_bytes(), 0)
        return
    controller = node["controller"]
    text, place = f"version {controller['version']} runs", f"pid {controller['pid']}, {controller['socket']}"
    if controller["version"] == __version__:
        yield Check("controller", "ok", text, details=place)
    else:
        advice = f"This package is version {__version__}. It is replaced once no kernel uses it any more."
        yield Check("controller", "warn", text, advice, place)
    available = node["host"]["available_bytes"]
    headroom = node["host"].get("cgroup_headroom_bytes")
    yield _host_memory(
        available if headroom is None else min(available, headroom), node["host"]["reserve_bytes"]
    )


def _host_memory(available: int, reserve: int) -> Check:
    text = f"{bytes_in_words(available)} available"
    if reserve:
        text += f", of which {bytes_in_words(reserve)} are kept free"
    if available - reserve >= 2**30:
        return Check("host memory", "ok", text)
    return Check("host memory", "warn", text, "Freeing GPU memory needs as much host memory.")


def _provisioner(server: DefaultProvisioner | None) -> Check:
    if OURS not in KernelProvisionerFactory(parent=None).get_provisioner_entries():
        return Check(
            "provisioner", "fail", f"{OURS} is not registered", "Reinstall jupyter-affinode with pip."
        )
    default = server or next_server_default()
    if default.is_ours:
        return Check(
            "provisioner", "ok", "new kernels are managed", details=f"{OURS} starts them: {default.reason}"
        )
    advice = f"Change that, or name {OURS} in kernelspecs that are to be managed (kernel_provisioner)."
    return Check("provisioner", "warn", f"{default.name} starts new kernels: {default.reason}", advice)


def next_server_default() -> DefaultProvisioner:
    """Return the provisioner that a Jupyter server would use if it started now, by its configuration and this
    environment."""
    from jupyter_server.serverapp import ServerApp

    app = ServerApp()
    app.load_config_file(suppress_errors=True)
    app.find_server_extensions()
    choice = site_choice(app.config)
    if choice is not None:
        return choice
    if not app.jpserver_extensions.get("jupyter_affinode", False):
        reason = "the server extension is not enabled (jupyter server extension enable jupyter_affinode)"
        return DefaultProvisioner(LOCAL, reason)
    if app.config.get("AffinodeExtension", {}).get("enabled") is False:
        return DefaultProvisioner(LOCAL, "AffinodeExtension.enabled is False")
    return DefaultProvisioner(OURS, "nothing else is configured")


def _lab_extension() -> Check:
    for folder in jupyter_path("labextensions", LAB_EXTENSION):
        package = Path(folder) / "package.json"
        if package.is_file():
            version = json.loads(package.read_text()).get("version")
            if version == __version__:
                return Check("lab extension", "ok", f"version {version}", details=folder)
            text = f"version {version}, this package is {__version__}"
            return Check(
                "lab extension", "warn", text, "Reinstall jupyter-affinode and reload the page.", folder
            )
    advice = "Only the panel is missing; reinstall jupyter-affinode to get it."
    return Check("lab extension", "warn", "not installed here", advice)


class ChildFailed(Exception):
    """A child process of a check failed; the message has its last output."""


def _child(code: str, **variables: str) -> str:
    """Return what a new Python process prints; it has no shim unless `variables` name one."""
    clean = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONSTARTUP")}
    clean.update(variables)
    try:
        done = subprocess.run(
            code_command(code), env=clean, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"no answer in {CHILD_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with status {done.returncode}"]
        raise ChildFailed(last[0])
    return done.stdout


def _simulated() -> dict[str, str]:
    """Return the variables that make a child use the simulated GPU if it is asked for. Raises SimulationRefused."""
    if not environment.simulation_asked():
        return {}
    folders = [str(environment.simulation_folder()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(folders)}


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
