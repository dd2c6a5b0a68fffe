"""Whether a file of ours is at the same path in the container that a command enters, by the command's options.

A bind shows what is below it, until another mount covers that: `bwrap --dev-bind / / --tmpfs /opt` shows nothing of
/opt. bwrap and Apptainer mount in the order of the words, the others the upper folders first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BIND_OPTIONS = (
    *("-B", "--bind", "-v", "--volume", "--mount", "-b", "-m", "--rbind", "--container-mounts"),
    *("--bind-ro", "--expose", "--share"),
)
# Something else is at that path then: empty, the container's own, or what cannot be told.
COVERING_OPTIONS = ("--tmpfs", "--inaccessible", "--overlay", "--overlay-ro")
COVERING = dict.fromkeys(("apptainer", "singularity"), ("-S", "--scratch", "--fusemount", "--overlay"))
HOME = dict.fromkeys(("apptainer", "singularity"), ("-H", "--home"))
BIND_VARIABLES = {
    name: (f"{name.upper()}_BIND", f"{name.upper()}_BINDPATH") for name in ("apptainer", "singularity")
}
IN_ORDER = ("bwrap", "apptainer", "singularity")
# `-v PATH` is a new and empty volume, where others bind the path to itself.
HAVE_VOLUMES = frozenset(
    (
        *("docker", "podman", "nerdctl", "podman-hpc", "finch", "balena", "buildah"),
        "docker-compose",
        "podman-compose",
    )
)

# bwrap's options with their arguments: how many, and which of them is the path in the sandbox.
BWRAP_BINDS = tuple(
    f"--{how}bind{tries}" for how in ("", "ro-", "dev-") for tries in ("", "-try")
)  # SOURCE PATH
BWRAP_COVERS = {
    **dict.fromkeys(("--tmpfs", "--proc", "--dev", "--mqueue", "--tmp-overlay", "--ro-overlay"), 1),
    **dict.fromkeys(("--bind-fd", "--ro-bind-fd", "--bind-data", "--ro-bind-data", "--file", "--symlink"), 2),
    "--overlay": 3,
}
BWRAP_ALONE = re.compile(
    r"--(unshare-.*|share-net|clearenv|new-session|die-with-parent|as-pid-1|disable-userns|assert-userns-disabled"
    r"|level-prefix|version|help)$"
)
BWRAP_TWO = ("--setenv", "--chmod")


@dataclass(frozen=True)
class Mount:
    """What is at a path in the container: the same path of the host (`shows`), or something else."""

    path: str
    shows: bool


def shows(name: str, words: list[str], env: Mapping[str, str], file: Path) -> bool:
    """Return whether the program `name` with these words enters a container in which the file is as it is here."""
    found = list(_of_bwrap(words) if name == "bwrap" else _of_options(name, words, env))
    above = [mount for mount in found if Path(mount.path) in (file, *file.parents)]
    if name not in IN_ORDER:
        above.sort(key=lambda mount: (len(Path(mount.path).parts), not mount.shows))
    return bool(above) and above[-1].shows


def _of_bwrap(words: list[str]) -> Iterator[Mount]:
    """Yield the mounts of bwrap's own options, which end where its command begins."""
    index = 1
    while index < len(words) and words[index].startswith("--") and words[index] != "--":
        word = words[index]
        count = 0 if BWRAP_ALONE.match(word) else 1
        if word in BWRAP_BINDS or word in BWRAP_TWO:
            count = 2
        count = BWRAP_COVERS.get(word, count)
        arguments = words[index + 1 : index + 1 + count]
        if word in BWRAP_BINDS and len(arguments) == 2:
            yield _bound(*arguments)
        elif word in BWRAP_COVERS and len(arguments) == count:
            yield Mount(os.path.normpath(arguments[-1]), shows=False)
        index += 1 + count


def _of_options(name: str, words: list[str], env: Mapping[str, str]) -> Iterator[Mount]:
    for variable in BIND_VARIABLES.get(name, ()):
        yield from _binds(name, env.get(variable, ""))
    late: list[Mount] = []  # Apptainer's scratch folders come after all binds
    for index, word in enumerate(words):
        option, has_value, value = word.partition("=")
        if not has_value:
            value = "".join(words[index + 1 : index + 2])
        if option[:2] in BIND_OPTIONS and not option.startswith("--") and len(word) > 2:
            option, value = word[:2], word[2:]
        if option in COVERING_OPTIONS or option in COVERING.get(name, ()):
            late += [Mount(os.path.normpath(path), shows=False) for path in _paths(value)[-1:]]
        elif option in HOME.get(name, ()) or option in BIND_OPTIONS:
            yield from _binds(name, value)
    yield from late


def _binds(name: str, text: str) -> Iterator[Mount]:
    """Yield the mounts of SOURCE[:PATH[:options]], of several of them, or of Docker's type=…,source=…,target=…"""
    named = dict(part.partition("=")[::2] for part in text.split(",") if "=" in part)
    path = next((named[key] for key in ("target", "destination", "dst") if key in named), None)
    if path is not None:
        source = named.get("source", named.get("src", ""))
        yield _bound(source if named.get("type", "bind") == "bind" else "", path)
        return
    for each in re.split(r",(?=/)", text):
        source, *others = each.split(":")
        if others and others[0].startswith("/"):
            yield _bound(source, others[0])
        elif source.startswith("/"):
            yield _bound("" if name in HAVE_VOLUMES else source, source.partition(",")[0])


def _bound(source: str, path: str) -> Mount:
    """Return a bind; without an absolute source it is a volume or an image."""
    is_same = source.startswith("/") and os.path.normpath(source) == os.path.normpath(path)
    return Mount(os.path.normpath(path), is_same)


def _paths(value: str) -> list[str]:
    """Return the absolute paths of an option's value; its modes and sizes are none."""
    return [part for part in re.split(r"[:, ]", value) if part.startswith("/")]
