"""The simulator's own C: structs against NVIDIA's header, the table of entry points, locks under sanitizers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SIM = HERE.parents[1] / "shim" / "sim"


def cuda_header() -> Path | None:
    """The folder with cuda.h: the toolkit's, or the PyPI package nvidia-cuda-runtime's."""
    folders = [Path("/usr/local/cuda/include")]
    found = importlib.util.find_spec("nvidia")
    for place in found.submodule_search_locations or [] if found else []:
        folders += sorted(Path(place).glob("*/include"))
    return next((folder for folder in folders if (folder / "cuda.h").exists()), None)


@pytest.mark.skipif(cuda_header() is None, reason="no cuda.h here")
def test_structs_are_laid_out_as_in_the_real_header(tmp_path):
    said = []
    for flags in ([f"-I{SIM}", f"-I{SIM.parent / 'src'}"], ["-DREAL", f"-I{cuda_header()}"]):
        program = tmp_path / f"layout{len(said)}"
        subprocess.run(["cc", *flags, str(HERE / "layout.c"), "-o", str(program)], check=True, timeout=60)
        said.append(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1]


def test_only_the_drivers_own_functions_are_exported(native):
    library = native / "libaffinode-sim-cuda.so"
    command = ["nm", "-D", "--defined-only", str(library)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    exported = {re.sub("_pt(ds|sz)$", "", line.split()[-1]) for line in symbols.splitlines()}
    signatures = (SIM.parent / "tools" / "signatures.tsv").read_text().splitlines()
    assert exported
    assert exported <= {line.split("\t")[0] for line in signatures}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.long
def test_many_threads_under_the_thread_sanitizer(machine, native, tmp_path):
    asked = subprocess.run(["gcc", "-print-file-name=libtsan.so"], check=True, capture_output=True, text=True)
    if not Path(asked.stdout.strip()).is_absolute():  # gcc answers with the bare name when it has none
        pytest.skip("gcc has no libtsan here")
    program = tmp_path / "stress"
    sources = [str(source) for source in sorted(SIM.glob("*/*.c")) if source.parent.name != "nvml"]
    flags = ["-g", "-O0", "-fsanitize=thread", "-std=gnu11", "-D_GNU_SOURCE", "-pthread"]
    flags += [f"-I{SIM}", f"-I{SIM.parent / 'src'}", f"-I{native / 'generated' / 'sim'}"]
    build = ["gcc", *flags, str(HERE / "stress.c"), *sources, "-o", str(program)]
    subprocess.run(build, check=True, timeout=120)
    machine.environment["AFFINODE_SIM_MEMORY"] = "1GiB"
    done = machine.start(str(program), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    out, _ = done.communicate(timeout=90)
    assert done.returncode == 0, out
    assert "WARNING" not in out, out
