"""The folders of the shim's sources form layers: each file includes headers of its own folder and of lower ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[2] / "shim"
SOURCES = SHIM / "src"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FOR_ALL = "protocol.h"
# by the build
MADE = ("driver/entry_points.h", "mover/digest_ptx.h", "context_depth/nvml_entry_points.h")


def layers() -> list[str]:
    """Return the folders from the lowest to the highest, as the Makefile declares them."""
    declared = re.search(r"^FOLDERS := (.*)$", (SHIM / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared
    return declared[1].split()


def includes() -> list[tuple[Path, Path]]:
    """Return each file of the shim with each header of the shim that it includes, from the folder of the sources."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.suffix in (".c", ".h", ".S")]
    return [
        (path.relative_to(SOURCES), Path(name))
        for path in files
        for name in INCLUDE.findall(path.read_text(encoding="utf-8"))
    ]


def test_every_folder_is_a_layer() -> None:
    assert sorted(layers()) == sorted(path.name for path in SOURCES.iterdir() if path.is_dir())
    assert [path.name for path in SOURCES.iterdir() if path.is_file()] == [FOR_ALL]


def test_every_include_names_a_file_from_the_folder_of_the_sources() -> None:
    assert not [
        (str(file), str(header))
        for file, header in includes()
        if str(header) not in MADE and not (SOURCES / header).is_file()
    ]


@pytest.mark.parametrize("layer", layers())
def test_a_layer_includes_nothing_of_a_higher_one(layer: str) -> None:
    order = layers()
    allowed = order[: order.index(layer) + 1]
    assert not [
        f"{file} includes {header}"
        for file, header in includes()
        if file.parts[0] == layer and str(header) != FOR_ALL and header.parts[0] not in allowed
    ]


def test_the_shared_header_includes_nothing_of_the_shim() -> None:
    assert not [header for file, header in includes() if str(file) == FOR_ALL]


def test_other_layers_know_context_depth_by_one_header() -> None:
    foreign = {
        str(header)
        for file, header in includes()
        if header.parts[0] == "context_depth" and file.parts[0] != "context_depth"
    }
    assert foreign == {"context_depth/context_depth.h"}
