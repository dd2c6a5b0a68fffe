"""The GPU policy of servers that DockerSpawner starts: what a container needs so that its machine's controller manages
its GPU.

A grant and settings go by the environment, as for every spawner. A container also needs the folder of the controller's
socket and, so that its kernels have the shim of the controller's version, the shim. Which GPUs it gets the site says
(`extra_host_config`), since Docker starts no container with a GPU that it cannot give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traitlets import Unicode, default

from jupyter_affinode.environment import LIBRARY, NODE_SOCKET, SHIM_NAME, shim_path

from .places import docker_is_here
from .spawner_mixin import GpuPolicy

SHIM_FOLDER = "/opt/affinode"
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # what engines put into a container
DEVICES = ("device_requests", "devices", "runtime")  # arguments of Docker's by which a container gets a GPU


class DockerGpuPolicy(GpuPolicy):
    """`GpuPolicy` for subclasses of DockerSpawner, whose containers with `gpu_memory` get binds."""

    gpu_library = Unicode(
        "",
        help="""The shim that containers get, as a path on Docker's machine; it is mounted at /opt/affinode. Not set:
        the one of the Hub's own installation, but none where the Hub itself runs in a container. Empty: the image's
        own.""",
    ).tag(config=True)

    @default("gpu_library")
    def _default_gpu_library(self) -> str:
        in_container = any(Path(mark).exists() for mark in CONTAINER_MARKS)
        return "" if in_container else str(shim_path({}) or "")

    def gpu_starts_here(self) -> bool:
        """Return whether it is the Hub's machine that Docker starts containers on."""
        return super().gpu_starts_here() and docker_is_here(self.client_kwargs)

    @property
    def volume_binds(self) -> dict[str, Any]:
        """The site's binds, and ours where the site has none at that place of the container.

        Docker makes a folder that is missing, but not on the nodes of a swarm: there a site's own binds do.
        """
        binds: dict[str, Any] = super().volume_binds
        taken = {bind["bind"].rstrip("/") for bind in binds.values()}
        for source, target in self._gpu_binds().items():
            if target not in taken:
                binds.setdefault(source, {"bind": target, "mode": "ro"})
        return binds

    def gpu_environment(self) -> dict[str, str]:
        """Add where the shim is in the container."""
        env = super().gpu_environment()
        if self.gpu_library in self._gpu_binds():
            env[LIBRARY] = f"{SHIM_FOLDER}/{SHIM_NAME}"
        return env

    async def create_object(self) -> Any:
        """Create the container as DockerSpawner does."""
        host_config = self.extra_host_config
        if (
            self.gpu_bytes()
            and isinstance(host_config, dict)
            and not any(name in host_config for name in DEVICES)
        ):
            self.log.warning(
                "the container of %s has gpu_memory, and extra_host_config gives it no GPU: unless Docker's default"
                " runtime does, add device_requests",
                self.user.name,
            )
        return await super().create_object()

    def _gpu_binds(self) -> dict[str, str]:
        """Return what a container with `gpu_memory` gets, by its place on Docker's machine."""
        if not self.gpu_bytes() or not self.gpu_starts_here():
            return {}
        folder = str(Path(self.gpu_socket or NODE_SOCKET).parent)
        shim = {self.gpu_library: f"{SHIM_FOLDER}/{SHIM_NAME}"} if self.gpu_library else {}
        return {folder: folder, **shim}
