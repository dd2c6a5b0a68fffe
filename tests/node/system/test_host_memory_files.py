"""Host memory: /proc and both versions of cgroups, read from files like the real ones."""

from __future__ import annotations

import os

import pytest

from jupyter_affinode.node.system import host_memory as host
from jupyter_affinode.settings.policy import GIB, MIB, default_host_reserve


@pytest.fixture
def system(tmp_path):
    """A /proc of process 7 and a cgroup tree; `system(version, "/user/kernel", files)`."""
    host._mount.cache_clear()

    def build(version, path, files, root="/"):
        tree, proc = tmp_path / "cgroup", tmp_path / "proc"
        (proc / "7").mkdir(parents=True)
        (proc / "self").mkdir()
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        mount = f"30 20 0:26 {root} {tree} rw,nosuid shared:4 - {kind}\n"
        (proc / "self" / "mountinfo").write_text("21 1 8:1 / / rw - ext4 /dev/x rw\n" + mount)
        hierarchy = "0::" if version == 2 else "4:cpu,cpuacct:/other\n5:memory:"
        (proc / "7" / "cgroup").write_text(f"{hierarchy}{path}\n")
        for name, content in files.items():
            file = tree / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return proc

    yield build
    host._mount.cache_clear()


def test_the_machines_memory_is_what_proc_says():
    memory = host.host_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_the_tightest_limit_above_a_process_counts(system):
    proc = system(
        2,
        "/user/kernel",
        {
            "user/memory.max": f"{4 * GIB}\n",
            "user/memory.high": "max\n",
            "user/memory.current": f"{3 * GIB}\n",
            "user/memory.stat": f"anon 5\ninactive_file {512 * MIB}\nactive_file {256 * MIB}\n"
            f"slab_reclaimable {64 * MIB}\n",
            "user/kernel/memory.max": f"{8 * GIB}\n",
            "user/kernel/memory.current": f"{1 * GIB}\n",
        },
    )
    limit = host.cgroup_memory(7, proc)
    assert limit is not None
    assert limit.headroom_bytes == 1 * GIB + (512 + 256 + 64) * MIB
    assert limit.path.endswith("/user")


@pytest.mark.parametrize("name", [b"\xff\xfe", "a\u2028b\x0bc".encode()])
def test_a_cgroup_may_be_called_anything(system, tmp_path, name):
    """Its owner names it: on a machine's controller a name must end no pass, and be no other cgroup's."""
    named = os.fsdecode(name)
    files = {f"{named}/memory.max": f"{2 * GIB}\n", f"{named}/memory.current": f"{GIB}\n"}
    proc = system(2, "/", files)
    (proc / "7" / "cgroup").write_bytes(b"0::/" + name + b"\n")
    mounts = proc / "self" / "mountinfo"
    mounts.write_bytes(b"22 1 0:9 / /home/a/\xff rw - fuse.x x rw\n" + mounts.read_bytes())
    limit = host.cgroup_memory(7, proc)
    assert limit is not None
    assert limit.headroom_bytes == GIB
    assert limit.path == str(tmp_path / "cgroup" / named)


def test_a_cgroup_may_lie_as_deep_as_linux_tells(system):
    """With where it is mounted, its path is longer than one that can be looked up."""
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert host.cgroup_memory(7, system(2, "/kernel" * 585, files)).headroom_bytes == GIB


def test_every_limit_above_a_process_is_told_the_nearest_first(system):
    """A parent's may be the lower one, or become it: others of its children share it."""
    files = {
        "user/memory.max": f"{4 * GIB}\n",
        "user/memory.current": f"{3 * GIB}\n",
        "user/kernel/memory.max": f"{8 * GIB}\n",
        "user/kernel/memory.current": f"{1 * GIB}\n",
    }
    limits = host.cgroup_limits(7, system(2, "/user/kernel", files))
    assert [(limit.path.rsplit("/", 1)[1], limit.headroom_bytes // GIB) for limit in limits] == [
        ("kernel", 7),
        ("user", 1),
    ]


def test_memory_high_counts_as_a_limit(system):
    files = {"k/memory.max": "max\n", "k/memory.high": f"{2 * GIB}\n", "k/memory.current": f"{GIB}\n"}
    assert host.cgroup_memory(7, system(2, "/k", files)).headroom_bytes == GIB


def test_version_1_has_other_names(system):
    files = {
        "k/memory.limit_in_bytes": f"{2 * GIB}\n",
        "k/memory.usage_in_bytes": f"{GIB}\n",
        "k/memory.stat": f"inactive_file 1\ntotal_inactive_file {100 * MIB}\ntotal_active_file {50 * MIB}\n",
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.usage_in_bytes": f"{GIB}\n",
    }
    assert host.cgroup_memory(7, system(1, "/k", files)).headroom_bytes == GIB + 150 * MIB


def test_inside_a_container_the_mount_shows_only_its_own_part(system):
    files = {"k/memory.max": f"{2 * GIB}\n", "k/memory.current": "0\n"}
    proc = system(2, "/docker/abc/k", files, root="/docker/abc")
    assert host.cgroup_memory(7, proc).headroom_bytes == 2 * GIB


def test_without_a_limit_or_a_process_there_is_none(system):
    proc = system(2, "/k", {"k/memory.max": "max\n", "k/memory.current": "5\n"})
    assert host.cgroup_memory(7, proc) is None
    assert host.cgroup_memory(8, proc) is None
    host._mount.cache_clear()
    host.cgroup_memory(os.getpid())  # and the real files of this machine can be read


def test_use_above_a_limit_is_no_headroom(system):
    files = {"k/memory.max": f"{GIB}\n", "k/memory.current": f"{2 * GIB}\n"}
    assert host.cgroup_memory(7, system(2, "/k", files)).headroom_bytes == 0


def test_the_reserve_suits_the_machine():
    assert default_host_reserve(4 * GIB) == 1 * GIB
    assert default_host_reserve(16 * GIB) == 2 * GIB
    assert default_host_reserve(128 * GIB) == 128 * GIB // 10
