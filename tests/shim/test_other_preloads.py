"""Libraries that a site preloads besides the shim, before it and after it: they do what they do without it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from link_peer import OK, bytes_of
from shim_machine import CC, Machine, Running
from shim_machine import HERE as PROCESSES
from small_programs import SMALL_BYTES, small_program

from jupyter_affinode.node.protocol.page import PageFlag

ORDERS = ["before", "after"]
ENOUGH, TOO_LITTLE = 4 * SMALL_BYTES, SMALL_BYTES // 2


@dataclass
class Ended:
    status: int
    said: str


@dataclass
class Limiter:
    options: list[str]
    holds_for: list[str]  # programs that it limits without us


FITS, REFUSED = Ended(0, "0 wrong\n"), Ended(1, "allocate: 2\n")
LIMITERS = {
    "a dlsym without a version": Limiter([], ["dlsym", "old dlsym", "cuGetProcAddress"]),
    "a dlsym with libc's version": Limiter(["-DHAS_VERSION"], ["old dlsym"]),
    "a dlsym hidden behind a version": Limiter(["-DHIDDEN"], ["old dlsym"]),
    "the driver's names": Limiter(["-DEXPORTED"], ["linked", "plugin by RTLD_DEFAULT"]),
    "the driver's names, also cuGetProcAddress": Limiter(
        ["-DEXPORTED", "-DANSWERS"], ["linked", "linked to cuGetProcAddress", "plugin by RTLD_DEFAULT"]
    ),
    "a dlsym, also cuMemCreate": Limiter(["-DLIMITS_CREATE"], ["dlsym", "old dlsym", "cuGetProcAddress"]),
    "the driver's names, also cuMemCreate": Limiter(
        ["-DEXPORTED", "-DLIMITS_CREATE"], ["linked", "plugin by RTLD_DEFAULT"]
    ),
}
IN_CI = ("a dlsym with libc's version", "the driver's names")
HOW = ["linked", "dlsym", "old dlsym", "cuGetProcAddress", "linked to cuGetProcAddress"]
HOW += ["plugin by RTLD_DEFAULT", "plugin by RTLD_NEXT"]
VERSIONS = "GLIBC_2.2.5 { global: dlsym; };\nGLIBC_2.17 { } GLIBC_2.2.5;\n"


def limiter(gpu: Machine, kind: str) -> Path:
    options = LIMITERS[kind].options
    linked = []
    if "-DHAS_VERSION" in options or "-DHIDDEN" in options:
        script = gpu.folder / "versions"
        script.write_text(VERSIONS)
        linked = [f"-Wl,--version-script={script}"]
    return gpu.compile("limiter.c", "-shared", "-fPIC", *options, *linked, "-ldl", name="limiter.so")


def preload(gpu: Machine, library: Path, order: str) -> None:
    shim = gpu.environment["LD_PRELOAD"]
    both = [str(library), shim] if order == "before" else [shim, str(library)]
    gpu.environment["LD_PRELOAD"] = ":".join(both)


def end_of(gpu: Machine, command: list[Path], preloads: str, limit: int) -> Ended:
    environment = {**gpu.environment, "LD_PRELOAD": preloads, "LIMITER_BYTES": str(limit)}
    ran = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    return Ended(ran.returncode, ran.stdout + ran.stderr)


@pytest.mark.parametrize("order", [pytest.param("before", marks=pytest.mark.long), "after"])
@pytest.mark.parametrize(
    "kind",
    [kind if kind in IN_CI else pytest.param(kind, marks=pytest.mark.long) for kind in LIMITERS],
)
def test_a_limit_holds_as_it_does_without_the_shim(gpu: Machine, kind: str, order: str) -> None:
    """A refusal comes at once: there is no room to wait for."""
    library = limiter(gpu, kind)
    preload(gpu, library, order)
    held = []
    for how in HOW:
        command = small_program(gpu, how)
        if end_of(gpu, command, str(library), ENOUGH).said != FITS.said:
            continue  # a program that does not start without us
        assert end_of(gpu, command, gpu.environment["LD_PRELOAD"], ENOUGH) == FITS
        if end_of(gpu, command, str(library), TOO_LITTLE) == REFUSED:
            assert end_of(gpu, command, gpu.environment["LD_PRELOAD"], TOO_LITTLE) == REFUSED
            held.append(how)
    assert held == LIMITERS[kind].holds_for


def test_what_is_limited_by_another_library_is_not_parked_and_counted(gpu: Machine) -> None:
    """The limit is on cuMemAlloc alone: it must be called, and its memory cannot move."""
    preload(gpu, limiter(gpu, "a dlsym without a version"), "after")
    gpu.environment["LIMITER_BYTES"] = str(ENOUGH)
    with Running(gpu, *small_program(gpu, "dlsym")) as running:
        assert running.answer() == "0 wrong"
        running.peer.wait(lambda page: sum(page.gpus[0].unmovable_bytes) == SMALL_BYTES)
        assert bytes_of(running.peer.page()) == (0, 0)
        running.say("?")
        assert running.answer() == "0 wrong"


def test_what_a_library_limits_by_cumemcreate_too_is_parked_all_the_same(gpu: Machine) -> None:
    preload(gpu, limiter(gpu, "a dlsym, also cuMemCreate"), "after")
    gpu.environment["LIMITER_BYTES"] = str(ENOUGH)
    with Running(gpu, *small_program(gpu, "dlsym")) as running:
        assert running.answer() == "0 wrong"
        running.peer.wait(lambda page: page.calls_in_flight == 0 and bytes_of(page) == (SMALL_BYTES, 0))
        assert running.peer.park().status == OK
        running.say("?")
        assert running.answer() == "0 wrong"


def test_a_process_whose_calls_may_pass_the_shim_by_is_not_parked(gpu: Machine) -> None:
    """A library before the shim looks functions up past it: then only linked calls come by."""
    preload(gpu, limiter(gpu, "a dlsym without a version"), "before")
    gpu.environment["LIMITER_BYTES"] = str(ENOUGH)
    with Running(gpu, *small_program(gpu, "linked")) as running:
        assert running.answer() == "0 wrong"
        assert running.peer.page().flags & PageFlag.UNPARKABLE
        assert running.peer.park().status != OK


AUDITOR = """
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <string.h>
static int (*real)(unsigned long long *, size_t);
static int limited(unsigned long long *address, size_t bytes) { return bytes > BYTES ? 2 : real(address, bytes); }
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }
uintptr_t la_symbind64(ElfW(Sym) *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
			const char *name)
{
	if (strcmp(name, "cuMemAlloc_v2") != 0)
		return symbol->st_value;
	*(uintptr_t *)&real = symbol->st_value;
	return (uintptr_t)limited;
}
"""


@pytest.mark.parametrize("how", ["linked", "dlsym"])
def test_a_limit_by_the_loaders_audit_interface_holds(gpu: Machine, how: str) -> None:
    """LD_AUDIT: such a library sees each binding and may change it."""
    (gpu.folder / "auditor.c").write_text(AUDITOR)
    command = small_program(gpu, how)
    for limit, end in ((ENOUGH, FITS), (TOO_LITTLE, REFUSED)):
        made = [f"-DBYTES={limit}", "-shared", "-fPIC"]
        gpu.environment["LD_AUDIT"] = str(
            gpu.compile(gpu.folder / "auditor.c", *made, name=f"auditor-{limit}.so")
        )
        assert end_of(gpu, command, "", limit) == end, "without the shim"
        assert end_of(gpu, command, gpu.environment["LD_PRELOAD"], limit) == end


ALLOCATOR = """
#include <stddef.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);
void *malloc(size_t size) { return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return __libc_realloc(old, size); }
void free(void *old) { __libc_free(old); }
"""
ASKING_ALLOCATOR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t size) /* what libc allocates on the way comes here again, and must not lead here a third time */
{
	static void *(*real)(size_t);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "malloc");
	return real(size);
}
"""
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
	int (*real)(clockid_t, struct timespec *), result;
	*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	result = real(clock, now);
	if (clock == CLOCK_REALTIME)
		now->tv_sec = 1000000000; /* in 2001 */
	return result;
}
time_t time(time_t *to) { return to ? (*to = 1000000000) : 1000000000; }
"""
# Uses the GPU, and says which file the process's malloc is from, and the year.
PYTHON = """
import ctypes, sys, time
def must(result): assert result == 0, result
driver, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
must(driver.cuInit(0))
must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(driver.cuCtxSetCurrent(context))
must(driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(4 << 20)))
must(driver.cuMemsetD32_v2(block, 7, ctypes.c_size_t(1 << 20)))
word = ctypes.c_uint32()
must(driver.cuMemcpyDtoH_v2(ctypes.byref(word), block, ctypes.c_size_t(4)))
assert word.value == 7
malloc = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    low, high = (int(part, 16) for part in line.split()[0].split("-"))
    if low <= malloc < high:
        print(line.split()[-1], time.gmtime().tm_year)
"""
STAND_INS = {"an allocator": ALLOCATOR, "an allocator that asks dlsym": ASKING_ALLOCATOR, "a clock": CLOCK}
SANITIZERS = ["libasan", "libtsan", "libubsan"]
PRELOADS = [*STAND_INS, "libasan", "jemalloc", "tcmalloc", "mimalloc", "libfaketime"]
PRELOADS += [pytest.param(kind, marks=pytest.mark.long) for kind in SANITIZERS[1:]]
INSTALLED = {
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.2",
    "libfaketime": "faketime/libfaketime.so.1",
}


def other_library(gpu: Machine, kind: str) -> Path:
    if kind in STAND_INS:
        (gpu.folder / "other.c").write_text(STAND_INS[kind])
        return gpu.compile(gpu.folder / "other.c", "-shared", "-fPIC", "-ldl", name="other.so")
    if kind in SANITIZERS:
        asked = [CC, f"-print-file-name={kind}.so"]
        found = [
            Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()).resolve()
        ]
    else:
        found = list(Path("/usr/lib").glob(f"*-linux-gnu/{INSTALLED[kind]}"))
    if not found or not found[0].is_file():
        pytest.skip(f"{kind} is not installed here")
    return found[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", PRELOADS)
def test_python_starts_and_the_other_library_works(gpu: Machine, kind: str, order: str) -> None:
    library = other_library(gpu, kind)
    program = gpu.folder / "program.py"
    program.write_text(PYTHON)
    added = {"FAKETIME": "2001-06-01 00:00:00", "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    ran = []
    preload(gpu, library, order)
    for preloads in (str(library), gpu.environment["LD_PRELOAD"]):
        environment = {**gpu.environment, **added, "LD_PRELOAD": preloads}
        command = [sys.executable, program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        if preloads == str(library) and done.returncode != 0:
            pytest.skip(f"Python does not start with {kind} alone")
        ran.append(Ended(done.returncode, done.stdout + done.stderr))
    assert ran[0] == ran[1]
    file, year = ran[1].said.split()
    is_clock = kind in ("a clock", "libfaketime")
    assert (year == "2001") == is_clock
    # A Python that is no shared object has the address of malloc in its own table.
    if Path(file).resolve() != Path(sys.executable).resolve():
        assert (Path(file).resolve() == library.resolve()) == (not is_clock and kind != "libubsan")


REFUSED_BYTES = """
more = ctypes.c_uint64()
print(driver.cuMemAlloc_v2(ctypes.byref(more), ctypes.c_size_t(64 << 20)))
"""
ALL = ["limiter", "libasan", *INSTALLED]


@pytest.mark.long
@pytest.mark.parametrize("first", ALL)
def test_three_libraries_and_the_shim_in_every_order_that_starts_without_it(gpu: Machine, first: str) -> None:
    """Whose malloc it is, what year it is and what is refused: as without the shim, wherever the shim stands."""
    libraries = {"limiter": limiter(gpu, "a dlsym without a version")}
    libraries |= {kind: other_library(gpu, kind) for kind in ALL[1:]}
    program = gpu.folder / "program.py"
    program.write_text(PYTHON + REFUSED_BYTES)
    command = [sys.executable, str(program)]
    added = {"FAKETIME": "2001-06-01 00:00:00", "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    added["LIMITER_BYTES"] = str(32 << 20)

    def end(preloads: list[str]) -> Ended:
        environment = {**gpu.environment, **added, "LD_PRELOAD": ":".join(preloads)}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:  # so do some of them without the shim
            return Ended(-1, "hangs")
        return Ended(done.returncode, done.stdout + done.stderr)

    started = 0
    for others in itertools.permutations([kind for kind in ALL if kind != first], 2):
        three = [str(libraries[kind]) for kind in (first, *others)]
        without = end(three)
        if without.status != 0:
            continue  # they do not start without the shim
        started += 1
        if "limiter" in (first, *others):
            assert without.said.endswith("\n2\n")  # CUDA_ERROR_OUT_OF_MEMORY
        for place in range(4):
            order = [*three[:place], gpu.environment["LD_PRELOAD"], *three[place:]]
            assert end(order) == without, order
    assert started


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="no musl-gcc here (musl-tools)")
def test_a_program_of_a_musl_distribution_runs_below_a_kernel(gpu: Machine) -> None:
    """musl lacks functions that the shim needs: there it does nothing, and looking symbols up works."""
    source, library, program = (gpu.folder / name for name in ("answer.c", "answer.so", "looks-up"))
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run(["musl-gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    subprocess.run(["musl-gcc", PROCESSES / "looks_up.c", "-o", program], check=True)
    for environment in (gpu.bare_environment, gpu.environment):
        ran = subprocess.run([program, library], env=environment, capture_output=True, text=True, timeout=20)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1 1 42\n", "")


def test_the_shim_needs_nothing_that_musl_lacks(native: Path) -> None:
    """What it cannot do without is weak: a strong reference ends a musl program at its start."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", native / "libaffinode.so"],
        check=True,
        capture_output=True,
        text=True,
    )
    kinds = {name.partition("@")[0]: kind for kind, name in map(str.split, listed.stdout.splitlines())}
    assert {kinds[name] for name in ("on_exit", "__register_atfork", "dlvsym")} == {"w"}
