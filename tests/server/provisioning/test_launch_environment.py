"""The environment a managed kernel gets, and every reason to start it without us."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_affinode import environment
from jupyter_affinode.provisioning import preload as launch

ARGV = [sys.executable, "-m", "ipykernel_launcher"]


@pytest.fixture
def shim(native, here) -> Path:
    """The built shim; the test's process belongs to a machine of its own."""
    launch.prove_preload.cache_clear()
    path = environment.shim_path()
    assert path is not None
    return path


def managed(env: dict[str, str], **options: object) -> dict[str, str]:
    launch.manage(env, "kernel-1", ARGV, **options)  # type: ignore[arg-type]
    return env


def test_the_shim_is_preloaded_and_what_was_preloaded_stays(shim):
    env = managed({"PATH": os.environ["PATH"], "LD_PRELOAD": "/lib/other.so /lib/third.so"})
    assert env["LD_PRELOAD"] == f"{shim}:/lib/other.so:/lib/third.so"
    assert env["AFFINODE_KERNEL_ID"] == "kernel-1"
    assert env["AFFINODE_LIBRARY"] == str(shim)
    assert env["PYTHONSTARTUP"] == str(launch.KERNEL_STARTUP)
    assert "AFFINODE_STARTUP_CHAIN" not in env and "AFFINODE_SERVER" not in env


def test_doing_it_twice_changes_nothing(shim):
    once = managed({"PATH": os.environ["PATH"], "PYTHONSTARTUP": "/home/me/start.py"})
    assert once["AFFINODE_STARTUP_CHAIN"] == "/home/me/start.py"
    assert managed(dict(once)) == once


def test_a_kernel_that_is_not_python_keeps_its_startup(shim):
    env = managed({"PATH": os.environ["PATH"], "PYTHONSTARTUP": "/home/me/start.py"}, python=False)
    assert env["PYTHONSTARTUP"] == "/home/me/start.py"


@pytest.mark.parametrize(
    "words",
    [
        "env -i PATH=/bin",
        "/usr/bin/env -",
        "env -iu HOME",
        "env --ignore-environment",
        "env -uLD_PRELOAD",
        "env --unset=LD_PRELOAD",
    ],
)
def test_a_command_that_drops_the_shim_is_refused_with_what_to_do(words):
    env = {}
    with pytest.raises(launch.Unmanaged, match=r'drops LD_PRELOAD.*"env"'):
        launch.manage(env, "kernel-1", [*words.split(), *ARGV])
    assert env == {}


def test_a_kernel_finds_its_servers_controller_whatever_its_own_environment_says(shim, here, monkeypatch):
    theirs = {"PATH": os.environ["PATH"], "TMPDIR": "/t", "XDG_RUNTIME_DIR": "/x", "HOME": "/h"}
    assert managed(dict(theirs))["AFFINODE_SOCKET"] == str(here.socket)
    assert managed({**theirs, "AFFINODE_SOCKET": "/chosen.sock"})["AFFINODE_SOCKET"] == "/chosen.sock"
    monkeypatch.delenv("AFFINODE_SOCKET")
    monkeypatch.setattr(environment, "TEMPORARY", here.folder)
    env = managed(dict(theirs))
    folder = here.folder / f"affinode-{os.getuid()}"
    assert env["AFFINODE_FOLDER"] == str(folder) and "AFFINODE_SOCKET" not in env
    assert folder.stat().st_mode & 0o777 == 0o700, (
        "no other user can take the name before the controller starts"
    )


def test_switched_off_means_untouched(shim):
    env = {"AFFINODE_DISABLE": "1"}
    with pytest.raises(launch.Unmanaged, match="AFFINODE_DISABLE"):
        managed(env)
    assert env == {"AFFINODE_DISABLE": "1"}


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_a_path_that_ld_preload_cannot_name_gets_a_link(shim, here, monkeypatch, name):
    folder = here.folder / name
    folder.mkdir()
    odd = folder / "libaffinode.so"
    shutil.copy(shim, odd)
    monkeypatch.setattr(environment, "shim_path", lambda: odd)
    for _ in range(2):
        env = managed({"PATH": os.environ["PATH"]})
        assert " " not in env["LD_PRELOAD"] and ":" not in env["LD_PRELOAD"]
        assert Path(env["LD_PRELOAD"]).resolve() == odd.resolve()
    said = subprocess.run(["/bin/true"], env=env, capture_output=True, check=True)
    assert said.stderr == b""


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"not a library", r"invalid ELF|cannot be preloaded"), (b"", r"too short|cannot be preloaded")],
)
def test_a_broken_shim_is_found_out_before_any_kernel_starts(shim, here, monkeypatch, content, words):
    broken = here.folder / "libaffinode.so"
    broken.write_bytes(content)
    monkeypatch.setattr(environment, "shim_path", lambda: broken)
    env = {"PATH": os.environ["PATH"]}
    with pytest.raises(launch.Unmanaged, match=words):
        managed(env)
    assert env == {"PATH": os.environ["PATH"]}


def test_a_missing_shim_says_so(shim, monkeypatch):
    monkeypatch.setattr(environment, "shim_path", lambda: None)
    with pytest.raises(launch.Unmanaged, match=r"no libaffinode\.so"):
        managed({})


def test_the_proof_is_made_once(shim, monkeypatch):
    managed({"PATH": os.environ["PATH"]})
    monkeypatch.setattr(launch, "_run_preloaded", lambda *_: pytest.fail("proved again"))
    managed({"PATH": os.environ["PATH"]})


def test_the_interpreters_own_loader_is_asked(shim):
    loader = launch.program_loader(Path(sys.executable))
    assert loader is not None and Path(loader).exists()
    assert launch.program_loader(Path(launch.__file__)) is None, "a script has none"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the foreign program is made for x86-64")
def test_a_loader_that_cannot_load_the_shim_is_found_out(shim, here):
    """A program whose loader refuses: `/bin/false` stands for a foreign one, named by a rewritten
    PT_INTERP.
    """
    loader = launch.program_loader(Path(sys.executable))
    program = bytearray(Path(sys.executable).resolve().read_bytes())
    at = program.index(loader.encode() + b"\0")
    program[at : at + len(loader)] = b"/bin/false".ljust(len(loader), b"\0")
    foreign = here.folder / "foreign-python"
    foreign.write_bytes(program)
    foreign.chmod(0o755)
    with pytest.raises(launch.Unmanaged, match="foreign-python"):
        launch.manage({"PATH": os.environ["PATH"]}, "kernel-1", [str(foreign)])


def library(here, source: str, *options: str, name: str = "other.so", compiler: str = "cc") -> Path:
    made = here.folder / name
    (here.folder / "source.c").write_text(source)
    subprocess.run([compiler, "-o", made, here.folder / "source.c", *options], check=True)
    return made


CHATTY = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void says(void) { fprintf(stderr, "in front: %s\\n", getenv("LD_PRELOAD")); }
"""


def test_a_library_that_is_missing_or_talks_does_not_switch_management_off(shim, here):
    chatty = library(here, CHATTY, "-shared", "-fPIC")
    for other in (chatty, here.folder / "missing.so"):
        env = managed({"PATH": os.environ["PATH"], "LD_PRELOAD": str(other)})
        assert env["LD_PRELOAD"] == f"{shim}:{other}"


AUDITOR = """
#include <link.h>
#include <stdio.h>
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
	return fprintf(stderr, "%s\\n", map->l_name), 0;
}
"""


def test_a_loader_that_tells_what_it_does_does_not_either(shim, here):
    """Its words have our file in them."""
    auditor = library(here, AUDITOR, "-D_GNU_SOURCE", "-shared", "-fPIC")
    for told in ({"LD_DEBUG": "all"}, {"LD_DEBUG": "files,versions"}, {"LD_AUDIT": str(auditor)}):
        env = managed({"PATH": os.environ["PATH"], **told})
        assert env["LD_PRELOAD"] == str(shim) and told.items() <= env.items()


def test_a_library_that_ends_programs_without_us_is_not_blamed_on_us(shim, here):
    ends = library(
        here, "#include <stdlib.h>\n__attribute__((constructor)) void ends(void) { _Exit(3); }", "-shared"
    )
    assert managed({"PATH": os.environ["PATH"], "LD_PRELOAD": str(ends)})["LD_PRELOAD"] == f"{shim}:{ends}"


def test_a_library_that_does_not_bear_the_shim_is_found_out(shim, here):
    source = """
    #include <stdlib.h>
    #include <string.h>
    __attribute__((constructor)) static void ends(void) { if (strstr(getenv("LD_PRELOAD"), "affinode")) _Exit(3); }
    """
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library(here, source, "-shared", "-fPIC"))}
    before = dict(env)
    with pytest.raises(launch.Unmanaged, match="status 3"):
        managed(env)
    assert env == before


@pytest.mark.parametrize(
    "first", ["/usr/lib/libasan.so.8", "libtsan.so.2", "/llvm/libclang_rt.asan-x86_64.so"]
)
def test_what_must_be_first_stays_first(shim, first):
    env = managed({"PATH": os.environ["PATH"], "LD_PRELOAD": f"/lib/other.so:{first}"})
    assert env["LD_PRELOAD"] == f"{first}:{shim}:/lib/other.so"
    assert managed(dict(env)) == env


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (None, "verify_asan_link_order=0"),
        ("detect_leaks=0", "detect_leaks=0:verify_asan_link_order=0"),
        ("verify_asan_link_order=1", "verify_asan_link_order=1"),
    ],
)
def test_address_sanitizers_order_is_not_verified_unless_asked_for(shim, given, got):
    env = {"PATH": os.environ["PATH"]} | ({"ASAN_OPTIONS": given} if given else {})
    assert managed(env)["ASAN_OPTIONS"] == got


OVERFLOW = """
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words)
{
	char *four = malloc(4);
	puts("runs");
	fflush(stdout);
	return count > 1 ? four[4] : (free(four), 0);
}
"""


def test_a_program_built_with_address_sanitizer_runs_in_a_cell(shim, here):
    env = managed({"PATH": os.environ["PATH"]})
    try:
        program = library(here, OVERFLOW, "-fsanitize=address", name="checked")
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no AddressSanitizer here")

    def run(words: list[str], **options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], env={**env, **options}, capture_output=True, text=True)

    good, own, bad = run([]), run([], ASAN_OPTIONS="detect_leaks=0"), run(["bad"])
    for runs in (good, own):
        assert (runs.returncode, runs.stdout, runs.stderr) == (0, "runs\n", "")
    assert "does not come first" in run([], ASAN_OPTIONS="verify_asan_link_order=1").stderr, "as it was asked"
    assert bad.returncode != 0 and "heap-buffer-overflow" in bad.stderr


@pytest.mark.parametrize("words", ["", "env A=1", "sh -c", "nice"])
def test_every_program_of_the_command_is_proved(shim, here, words):
    program = bytearray(Path(sys.executable).resolve().read_bytes())
    loader = (launch.program_loader(Path(sys.executable)) or "").encode()
    at = program.index(loader + b"\0")
    program[at : at + len(loader)] = b"/bin/false".ljust(len(loader), b"\0")
    foreign = here.folder / "foreign-python"
    foreign.write_bytes(program)
    foreign.chmod(0o755)
    with pytest.raises(launch.Unmanaged, match="foreign-python"):
        launch.manage({"PATH": os.environ["PATH"]}, "kernel-1", [*words.split(), str(foreign)])


def test_the_simulated_gpu_comes_first_on_the_library_path(shim, here):
    if environment.sim_paths() is None:
        pytest.fail("make -C shim did not build the simulator")
    env = managed({"PATH": os.environ["PATH"], "AFFINODE_SIM": "1", "LD_LIBRARY_PATH": "/opt/lib"})
    first, second = env["LD_LIBRARY_PATH"].split(":")
    assert Path(first, "libcuda.so.1").exists() and second == "/opt/lib"


def test_a_refused_simulation_leaves_the_kernel_alone(shim, monkeypatch):
    def refuse() -> Path:
        raise environment.SimulationRefused("a real driver is here")

    monkeypatch.setattr(environment, "simulation_folder", refuse)
    env = {"PATH": os.environ["PATH"], "AFFINODE_SIM": "1"}
    with pytest.raises(launch.Unmanaged, match="a real driver"):
        managed(env)
    assert "LD_PRELOAD" not in env


def test_the_shim_that_a_spawner_brought_is_preloaded_while_it_is_there(shim, here, monkeypatch):
    """The init container of a pod copies that of the node's controller, and may have failed to."""
    brought = here.folder / "libaffinode.so"
    shutil.copy(shim, brought)
    monkeypatch.setenv("AFFINODE_LIBRARY", str(brought))
    assert managed({"PATH": os.environ["PATH"]})["LD_PRELOAD"] == str(brought)
    brought.unlink()
    assert managed({"PATH": os.environ["PATH"]})["LD_PRELOAD"] == str(shim)
