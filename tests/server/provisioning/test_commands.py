"""Kernelspecs' commands: what drops the shim or leads into a container is seen, what does not is left alone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from jupyter_affinode.provisioning.command import PACKAGE, Command

LIBRARY = PACKAGE / "lib" / "libaffinode.so"
KERNEL = ["python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json"]


def obstacle(argv: list[str], **env: str) -> str | None:
    return Command(argv, {"PATH": "/usr/bin:/bin", **env}, LIBRARY).obstacle


def in_front(words: str) -> list[str]:
    return [*words.split(), *KERNEL]


@pytest.mark.parametrize(
    "argv",
    [
        in_front("env LD_PRELOAD=/opt/other.so"),
        in_front("/usr/bin/env A=1 LD_PRELOAD="),
        in_front("nice -n 5 env -i PATH=/bin"),
        in_front("taskset -c 0 env -u LD_PRELOAD"),
        in_front("timeout 10h nice env - A=1"),
        ["env", "-S", "LD_PRELOAD=/opt/other.so python -m ipykernel_launcher", *KERNEL[3:]],
        in_front("sudo -E"),
        in_front("nohup doas"),
        ["sh", "-c", "LD_PRELOAD=/opt/other.so exec python -m ipykernel_launcher -f /run/kernel-1.json"],
        ["sh", "-c", "unset LD_PRELOAD; exec python -m ipykernel_launcher -f /run/kernel-1.json"],
        ["bash", "-lc", 'export LD_PRELOAD="/opt/other.so" && exec "$@"', "bash", *KERNEL],
        ["bash", "--login", "-c", 'LD_PRELOAD=\nexec "$@"', "bash", *KERNEL],
        ["bash", "-c", 'exec -c "$@"', "bash", *KERNEL],
        ["sh", "-ec", 'exec env -i "$@"', "sh", *KERNEL],
        ["env", "A=1", "sh", "-c", 'env LD_PRELOAD=/opt/other.so "$0" "$@"', *KERNEL],
        ["tcsh", "-c", "unsetenv LD_PRELOAD; exec python -m ipykernel_launcher"],
        ["csh", "-c", "setenv LD_PRELOAD /opt/other.so; exec python -m ipykernel_launcher"],
        ["fish", "-c", "set -e LD_PRELOAD; exec python -m ipykernel_launcher"],
        ["fish", "-c", "set -gx LD_PRELOAD /opt/other.so; exec python -m ipykernel_launcher"],
        in_front("busybox env -i"),
        in_front("env --ignore-signal=INT --block-signal -i"),
        in_front("stdbuf -oL env --unset LD_PRELOAD"),
        in_front("systemd-run --user --pipe"),
        in_front("srun --export=PATH,HOME"),
        in_front("srun --export NONE --gres gpu:1"),
        in_front("su - user -c"),
        in_front("setpriv --reset-env --reuid 1"),
        in_front("nix develop --ignore-environment -c"),
        in_front("guix shell --pure python --"),
        in_front("pixi run env -i"),
        in_front("ssh -p 22 host"),
        in_front("gcloud compute ssh host --"),
        ["sh", "-c", 'exec ssh host "$@"', "sh", *KERNEL],
    ],
    ids=" ".join,
)
def test_what_drops_the_shim_is_seen(argv):
    assert "LD_PRELOAD" in (obstacle(argv) or "")


@pytest.mark.parametrize(
    "argv",
    [
        KERNEL,
        in_front("env A=-i"),
        in_front("env LD_PRELOAD=/opt/other.so:/opt/venv/libaffinode.so"),
        in_front(f"env -i LD_PRELOAD={LIBRARY} AFFINODE_KERNEL_ID=1"),
        ["sh", "-c", 'LD_PRELOAD=$LD_PRELOAD:/opt/other.so exec "$@"', "sh", *KERNEL],
        ["sh", "-c", 'export LD_PRELOAD="${LD_PRELOAD}:/opt/other.so"; exec "$@"', "sh", *KERNEL],
        ["sh", "-c", 'LD_PRELOAD= module load cuda 2>&1 | cat\nexec "$@"', "sh", *KERNEL],
        ["sh", "-c", '# unset LD_PRELOAD: don\'t\nif true; then exec "$@"; fi', "sh", *KERNEL],
        ["sh", "-c", 'echo "an unbalanced text', "sh", *KERNEL],
        in_front("conda run -n docker"),
        in_front("conda run -n ssh"),
        in_front("micromamba run -p /envs/sudo"),
        ["sh", "-c", 'LIBS=/opt/other.so:$LD_PRELOAD; LD_PRELOAD="$LIBS" "$@"', "sh", *KERNEL],
        in_front("pixi run -e lima"),
        in_front("systemd-run --user --scope -p MemoryMax=8G"),
        in_front("systemd-run --user --pipe -E LD_PRELOAD=/opt/venv/libaffinode.so"),
        in_front("srun --export=ALL,A=1"),
        in_front("srun --export LD_PRELOAD,AFFINODE_KERNEL_ID"),
        [*in_front("nix develop -c"), "-i"],
        in_front("unshare -U --mount"),
        in_front("su user -c"),
        ["sh", "-c", 'set -eu; exec "$@"', "sh", *KERNEL],
        ["fish", "-c", "set -gx LD_PRELOAD $LD_PRELOAD /opt/other.so; exec python"],
        ["python", "-m", "docker", "run"],
        in_front("srun --gres gpu:1"),
        in_front("unshare -U"),
        [],
    ],
    ids=" ".join,
)
def test_other_commands_are_left_alone(argv):
    assert obstacle(argv) is None


CONTAINERS = [
    "apptainer exec --nv image.sif",
    "/opt/bin/singularity --quiet run image.sif",
    "docker run --rm image",
    "podman --log-level error exec kernels",
    "bwrap --ro-bind /usr /usr",
    "chroot /srv/image",
    "enroot start image",
    "ch-run image --",
    "srun --container-image=image",
    "srun --gres gpu:1 --container-image image",
    "flatpak-spawn --host",
]


@pytest.mark.parametrize("words", CONTAINERS)
@pytest.mark.parametrize("front", ["", "env A=1", "nice -n 5", "/usr/bin/taskset -c 0", "sh", "script"])
def test_what_enters_a_container_is_seen_and_told_what_to_bind(words, front, tmp_path):
    argv = [*front.split(), *in_front(words)]
    if front == "sh":
        argv = ["sh", "-c", f'module load it; exec {words} "$@"', "sh", *KERNEL]
    elif front == "script":
        script = tmp_path / "start"
        script.write_text(f'#!/bin/bash\n# a site\'s script\nset -e\n{words} "$@"\n')
        script.chmod(0o755)
        argv = [str(script), *KERNEL]
    reason = obstacle(argv)
    assert reason is not None and "container" in reason and str(PACKAGE) in reason


@pytest.mark.parametrize(
    "words",
    [
        "docker --context remote exec -i container",
        "docker compose exec kernels",
        "docker-compose run kernels",
        "nerdctl -n kernels exec container",
        "kubectl -n kernels exec -i pod --",
        "systemd-nspawn -D /srv/image",
        "systemd-nspawn --bind-ro=/opt:/opt -D /srv/image",
        "machinectl -q shell user@machine",
        "lxc exec container --",
        "lxc-attach -n container --",
        "toolbox run -c box",
        "distrobox enter box --",
        "proot -r /srv/image",
        "unshare --root=/srv/image",
        "nsenter -t 1 -m",
        "ctr task exec container",
        "crictl exec -i container",
        "buildah run container --",
        "schroot -c image --",
        "guix shell -C python --",
        "limactl shell machine",
        "conda run -n kernels docker exec container",
        "tini -- docker exec container",
    ],
)
def test_other_ways_into_a_container_too(words):
    assert "container" in (obstacle(in_front(words)) or "")


@pytest.mark.parametrize(
    "words",
    [
        f"apptainer exec --bind {PACKAGE} image.sif",
        f"apptainer exec --bind=/data,{PACKAGE}:{PACKAGE}:ro image.sif",
        f"singularity exec -B {PACKAGE.parent} image.sif",
        f"docker run -v {PACKAGE}:{PACKAGE}:ro -e LD_PRELOAD -e AFFINODE_KERNEL_ID image",
        f"podman run --mount type=bind,source={PACKAGE},target={PACKAGE} --env LD_PRELOAD image",
        "bwrap --ro-bind / / --dev /dev",
        f"srun --container-image=image --container-mounts={PACKAGE}:{PACKAGE}",
        f"ch-run -b {PACKAGE}:{PACKAGE} image --",
        f"systemd-nspawn --bind-ro={PACKAGE} -E LD_PRELOAD={LIBRARY} -D /srv/image",
        f"guix shell -C --expose={PACKAGE} --preserve=LD_PRELOAD python --",
    ],
)
def test_a_container_that_gets_the_shim_is_managed(words):
    assert obstacle(in_front(words)) is None


@pytest.mark.parametrize(
    "words",
    [
        f"apptainer exec --cleanenv --bind {PACKAGE} image.sif",
        f"docker run -v {PACKAGE}:{PACKAGE} image",
        f"docker run -v {PACKAGE}:/affinode -e LD_PRELOAD image",
        "bwrap --ro-bind /opt /srv",
        f"apptainer exec --pwd {PACKAGE} image.sif",
    ],
)
def test_a_container_that_gets_half_of_it_is_not(words):
    assert "container" in (obstacle(in_front(words)) or "")


@pytest.mark.parametrize(
    "words",
    [
        f"bwrap --dev-bind / / --tmpfs {PACKAGE}",
        f"bwrap --dev-bind / / --tmpfs {PACKAGE.parent} --",
        f"bwrap --bind / / --perms 0700 --dir /x --ro-bind /srv {PACKAGE.parent}",
        f"bwrap --bind / / --ro-bind-data 7 {LIBRARY}",
        f"bwrap --bind / / --symlink /srv {PACKAGE.parent}",
        f"bwrap --bind / / --overlay-src /srv --tmp-overlay {PACKAGE}",
        f"bwrap --bind / / --overlay /rw /work {PACKAGE}",
        f"bwrap --ro-bind {PACKAGE} {PACKAGE} --bind /srv /",
        "bwrap --ro-bind / / --proc /",
        f"bwrap --setenv --bind x --dir / sh -c --bind {PACKAGE} {PACKAGE}",
        f"docker run -v /:/ --tmpfs {PACKAGE} -e LD_PRELOAD image",
        f"docker run --tmpfs={PACKAGE.parent}:rw,size=64m -v /opt:/opt -e LD_PRELOAD image",
        f"docker run -v {PACKAGE} -e LD_PRELOAD image",
        f"docker run -v {PACKAGE.parent}:{PACKAGE.parent} -v cache:{PACKAGE} -e LD_PRELOAD image",
        f"docker run --mount type=volume,source=x,target={PACKAGE} -e LD_PRELOAD image",
        f"podman run -v /:/ --mount type=tmpfs,destination={PACKAGE} -e LD_PRELOAD image",
        f"podman run -v {PACKAGE.parent}:{PACKAGE} -e LD_PRELOAD image",
        f"podman run -v{PACKAGE.parent}:{PACKAGE.parent} -v/srv:{PACKAGE} -e LD_PRELOAD image",
        f"apptainer exec --bind {PACKAGE} --scratch {PACKAGE.parent} image.sif",
        f"apptainer exec -S {PACKAGE} -B {PACKAGE} image.sif",
        f"apptainer exec --bind {PACKAGE},/srv:{PACKAGE} image.sif",
        f"apptainer exec -B {PACKAGE} -H /srv:{PACKAGE.parent} image.sif",
        f"singularity exec -B {PACKAGE} --mount type=bind,source=/srv,destination={PACKAGE} image.sif",
        f"systemd-nspawn --bind={PACKAGE.parent} --tmpfs={PACKAGE}:mode=755 -E LD_PRELOAD={LIBRARY} -D /srv",
        f"systemd-nspawn --bind={PACKAGE.parent} --inaccessible={PACKAGE} -E LD_PRELOAD={LIBRARY} -D /srv",
    ],
)
def test_what_another_mount_covers_is_not_there(words):
    assert "container" in (obstacle(in_front(words)) or "")


@pytest.mark.parametrize(
    "words",
    [
        f"bwrap --tmpfs / --ro-bind {PACKAGE} {PACKAGE}",
        "bwrap --dev-bind / / --tmpfs /srv --proc /proc --dev /dev --unshare-pid --setenv A --tmpfs",
        f"bwrap --dev-bind / / --tmpfs {PACKAGE.parent} --ro-bind {PACKAGE} {PACKAGE}",
        f"docker run --tmpfs {PACKAGE.parent} -v {PACKAGE}:{PACKAGE}:ro --tmpfs /srv -e LD_PRELOAD image",
        f"podman run -v {PACKAGE}/:{PACKAGE} -v data:/data -e LD_PRELOAD image",
        f"apptainer exec --scratch /scratch --bind {PACKAGE}:{PACKAGE}:ro -H /srv:/home/me image.sif",
    ],
)
def test_what_is_mounted_beside_it_or_below_covers_nothing(words):
    assert obstacle(in_front(words)) is None


def test_a_variable_may_bind_for_apptainer():
    argv = in_front("apptainer exec image.sif")
    assert obstacle(argv, APPTAINER_BIND=f"/data,{PACKAGE}") is None


def test_every_program_of_a_command_is_found(tmp_path):
    script = tmp_path / "kernel"
    script.write_text(f"#!/usr/bin/env {sys.executable}\n")
    script.chmod(0o755)
    for argv in (["env", "A=1", str(script)], ["sh", "-c", f'cd /; exec nice "{script}"']):
        programs = Command(argv, {"PATH": "/usr/bin:/bin"}, LIBRARY).programs
        assert programs[0] == shutil.which(argv[0], path="/usr/bin:/bin")
        assert {str(script), sys.executable} <= set(programs)


def test_a_script_that_runs_itself_has_an_end(tmp_path):
    script = tmp_path / "kernel"
    script.write_text(f'#!/bin/sh\nexec {script} "$@" "$@"\n')
    script.chmod(0o755)
    assert obstacle([str(script), "a"]) is None


def test_a_shim_that_a_spawner_brought_is_named_besides_the_package():
    brought = Path("/opt/affinode/libaffinode.so")
    reason = Command(in_front("apptainer exec image.sif"), {}, brought).obstacle
    assert f"bind /opt/affinode and {PACKAGE} " in (reason or "")
