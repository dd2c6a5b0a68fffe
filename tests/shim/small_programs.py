"""Programs that use the driver a little, and get at it in each of the ways that there are."""

from __future__ import annotations

import platform
from pathlib import Path

from shim_machine import Machine

SMALL_BYTES = 4 << 20
OLDEST_GLIBC = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def linked_to_driver(gpu: Machine) -> list[str]:
    return ["-Wl,--no-as-needed", f"-L{gpu.driver}", "-l:libcuda.so.1"]


def small_program(gpu: Machine, how: str) -> list[Path]:
    """The command of small.c, getting at the driver as `how` says."""
    if how == "linked":
        return [gpu.compile("small.c", *linked_to_driver(gpu), name="small")]
    if how in ("dlsym", "old dlsym", "cuGetProcAddress"):
        options = ['-DHANDLE=dlopen("libcuda.so.1", RTLD_NOW)', "-ldl"]
        if how == "cuGetProcAddress":
            options.append('-DASK=dlsym(library, "cuGetProcAddress_v2")')
        if how == "old dlsym":
            options.append(f'-DDLSYM_VERSION="{OLDEST_GLIBC[platform.machine()]}"')
        return [gpu.compile("small.c", *options, name="small")]
    if how == "linked to cuGetProcAddress":
        asks = ["-DHANDLE=NULL", "-DASK=cuGetProcAddress_v2", "-Wno-unused-variable"]
        return [gpu.compile("small.c", *asks, *linked_to_driver(gpu), name="small")]
    looked_up = [] if how == "plugin" else [f"-DHANDLE={how.removeprefix('plugin by ')}"]
    return plugin(gpu, "small.c", *looked_up, *linked_to_driver(gpu))


def plugin(gpu: Machine, source: str, *options: str) -> list[Path]:
    """The command of a program that loads the source with RTLD_LOCAL, as Python loads extension modules."""
    return [
        gpu.compile("plugin_host.c", "-ldl", name="host"),
        gpu.compile(source, "-shared", "-fPIC", "-Dmain=run", *options, "-ldl", name="plugin.so"),
    ]
