"""The GPU policy of servers that KubeSpawner starts: what a pod needs so that its node's controller manages its GPU.

The Hub does not know to which node a pod will go. So the pod asks its node's controller for room: an init
container with the controller's image copies the shim into the pod, proves it, asks for room and always ends with
status 0. Whatever is missing, the server starts.

The additions are made in `get_pod_manifest`: a profile's overrides are visible there and not in a pre-spawn hook, and
the site's `modify_pod_hook` runs afterwards and may change or remove any of them.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

from kubernetes_asyncio.client.models import (
    V1Capabilities,
    V1Container,
    V1EmptyDirVolumeSource,
    V1EnvVar,
    V1HostPathVolumeSource,
    V1ResourceRequirements,
    V1SeccompProfile,
    V1SecurityContext,
    V1Volume,
    V1VolumeMount,
)
from traitlets import Unicode

from jupyter_affinode.environment import GRANT, GRANT_FILE, LIBRARY, NODE_SOCKET, SHIM_NAME, SOCKET

from .nodes import Nodes
from .spawner_mixin import GpuPolicy

SHIM_FOLDER = "/opt/affinode"
INIT_CONTAINER = "affinode"
INIT_UID = 65534  # where the server's container names no user, or root
ROOM_GRACE_S = 10  # for the start of the command that asks, and for its end
# The loader only prints a line where a library cannot be preloaded, and others may print lines of their own: what
# counts is whether a program has it loaded. The copy gets its name when it has proved to work, since the provisioner
# takes what has that name.
PREPARE = """\
cd {folder} || exit 0
library=$(python3 -c 'from jupyter_affinode.environment import shim_path; print(shim_path())')
cp "$library" .{shim} \\
    && said=$(AFFINODE_DISABLE=1 LD_PRELOAD={folder}/.{shim} cat /proc/self/maps 2>&1) \\
    && echo "$said" | grep -q 'r-xp.* {folder}/.{shim}$' \\
    && mv .{shim} {shim} \\
    || echo "the controller's shim is not used: $(echo "$said" | grep -F {shim})"
timeout {limit_s} jupyter-affinode room {size} --timeout {wait_s:g}
exit 0
"""


class KubernetesGpuPolicy(GpuPolicy):
    """`GpuPolicy` for subclasses of KubeSpawner."""

    gpu_asks_from_hub = False

    gpu_image = Unicode(
        "",
        help="""The image of the nodes' controller, as in the chart's `image`. Pods of servers with `gpu_memory` get
        an init container of it, which copies the controller's shim and asks for room. Empty: no init container; the
        server's own jupyter-affinode brings the shim, and a kernel's first allocation waits for room.

        Example: `c.KubeSpawner.gpu_image = "registry.example.org/jupyter-affinode:0.1.0"`
        """,
    ).tag(config=True)
    gpu_controllers = Unicode(
        "",
        help="""The address of the nodes' controllers, as the chart's `hubAccess` makes it: the page on which users
        choose a server gets a line about free room. Needs `grant_key`. Empty: no line.

        Example: `c.KubeSpawner.gpu_controllers = "http://affinode-jupyter-affinode.affinode.svc:9714"`
        """,
    ).tag(config=True)

    def gpu_nodes(self) -> Nodes:
        """Return the nodes: by their address, or the Hub's own."""
        if not self.gpu_controllers:
            return super().gpu_nodes()
        return Nodes({"nodes": self.gpu_controllers}, self.grant_key)

    async def get_pod_manifest(self) -> Any:
        """Return the base's pod, with what the GPU's management needs if `gpu_memory` is set.

        Called by KubeSpawner at each start, after a profile's overrides and before `modify_pod_hook`. A pod to which
        nothing can be added starts as the base made it.
        """
        pod = await super().get_pod_manifest()
        size = self.gpu_bytes()
        if size > 0 and self.on_gpu_full == "refuse":  # of a group or a profile: `enable` sees neither
            self.log.warning("on_gpu_full='refuse' is not heeded for the pod of %s", self.user.name)
        if size > 0:
            try:
                self._share_gpu(pod, size)
            except Exception:  # a site's own class may make pods of another shape
                self.log.exception("the pod of %s starts without GPU management", self.user.name)
        return pod

    def _share_gpu(self, pod: Any, size: int) -> None:
        """Add volumes, mounts, environment and init container to a pod, unless they are there. All or nothing."""
        notebook = pod.spec.containers[0]
        environ = {each.name: each for each in notebook.env or []}
        folder = str(PurePosixPath(self.gpu_socket or NODE_SOCKET).parent)
        additions = PodAdditions(notebook.volume_mounts or [])
        # "Directory" would keep pods from starting on nodes without a controller.
        host = V1HostPathVolumeSource(path=folder, type="DirectoryOrCreate")
        socket = additions.mount(folder, V1Volume(name="affinode-socket", host_path=host))
        init_containers = list(pod.spec.init_containers or [])
        env = list(notebook.env or [])
        if self.gpu_image and all(each.name != INIT_CONTAINER for each in init_containers):
            empty = V1EmptyDirVolumeSource(size_limit="16Mi")
            shim = additions.mount(SHIM_FOLDER, V1Volume(name="affinode-shim", empty_dir=empty))
            passed = [environ[name] for name in (GRANT, GRANT_FILE, SOCKET) if name in environ]
            mounts = [
                V1VolumeMount(name=socket, mount_path=folder, read_only=True),
                V1VolumeMount(name=shim, mount_path=SHIM_FOLDER),
            ]
            init_containers.append(self._init_container(size, notebook, mounts, passed))
            if LIBRARY not in environ:
                env.append(V1EnvVar(name=LIBRARY, value=f"{SHIM_FOLDER}/{SHIM_NAME}"))
        taken = {volume.name for volume in pod.spec.volumes or []}
        volumes = [volume for volume in additions.volumes if volume.name not in taken]
        pod.spec.volumes = [*(pod.spec.volumes or []), *volumes]
        pod.spec.init_containers = init_containers or None
        notebook.volume_mounts = [*(notebook.volume_mounts or []), *additions.mounts]
        notebook.env = env

    def _init_container(
        self, size: int, notebook: Any, mounts: list[V1VolumeMount], env: list[V1EnvVar]
    ) -> V1Container:
        """Return the container that prepares the pod; it runs as the server's user, with nothing else."""
        wait_s = max(self.gpu_wait_s, 0.0)
        script = PREPARE.format(
            folder=SHIM_FOLDER,
            shim=SHIM_NAME,
            size=size,
            wait_s=wait_s,
            limit_s=math.ceil(wait_s) + ROOM_GRACE_S,
        )
        # The server's is a dict, of KubeSpawner's making, or a model of a site's.
        server = notebook.security_context or {}
        uid = server.get("runAsUser") if isinstance(server, dict) else server.run_as_user
        return V1Container(
            name=INIT_CONTAINER,
            image=self.gpu_image,
            image_pull_policy="IfNotPresent",  # the node's controller has it there already
            command=["/bin/sh", "-c", script],
            env=env or None,
            volume_mounts=mounts,
            resources=V1ResourceRequirements(
                requests={"cpu": "10m", "memory": "64Mi"}, limits={"memory": "512Mi"}
            ),
            security_context=V1SecurityContext(
                run_as_user=uid or INIT_UID,
                run_as_non_root=True,
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=V1Capabilities(drop=["ALL"]),
                seccomp_profile=V1SeccompProfile(type="RuntimeDefault"),
            ),
        )


class PodAdditions:
    """Volumes that a pod lacks, and their mounts in the server's container."""

    def __init__(self, mounts: list[V1VolumeMount]):
        """`mounts` are those that the container has."""
        self.volumes: list[V1Volume] = []
        self.mounts: list[V1VolumeMount] = []
        self._there = {mount.mount_path.rstrip("/"): mount.name for mount in mounts}

    def mount(self, path: str, volume: V1Volume) -> str:
        """Mount a volume at `path`, read-only, unless the site mounts one there; return its name."""
        if path in self._there:
            return str(self._there[path])
        self.volumes.append(volume)
        self.mounts.append(V1VolumeMount(name=volume.name, mount_path=path, read_only=True))
        return str(volume.name)
