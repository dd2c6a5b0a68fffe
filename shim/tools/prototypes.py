"""Read the driver's prototypes out of cuda.h and its interop headers, as one signature per entry point.

A signature has one code per argument, in order: `c` `s` `i` `l` integers and enums of 1, 2, 4, 8 bytes, `p` a
pointer, `f` float, `d` double, `{N}` a struct of N bytes passed by value. Every entry point returns a
CUresult. Codes and not C types, because only width and kind decide in which registers and stack words an
argument travels. Two types are told apart all the same, because parking moves what they stand for: `a` is a
CUdeviceptr and `h` a CUmemGenericAllocationHandle (both travel as `l`), `A` and `H` are pointers to one.

Beside the signature stands since which driver version (cuGetProcAddress's `cudaVersion`) the name is what its
base name means: cuMemAlloc_v2 since 3020, cuMemAlloc since 2000. The Typedefs headers tell.

Used by `entry_points.py --headers`; needs a C compiler and the headers, which nothing else in the project
does.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PER_THREAD_SUFFIX = r"_pt[sd][zs]"

HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
TYPEDEF_HEADERS = tuple(name.replace(".h", "Typedefs.h") for name in HEADERS)

# cuda.h declares the newest versions under macros, the per-thread-stream variants under a second set of
# macros, and the older versions only for the driver's own build: both ways together give every exported name.
DEFINITIONS = ((), ("-D__CUDA_API_VERSION_INTERNAL",))

# What OpenGL, EGL and VDPAU types look like, so that their development packages are not needed.
STAND_INS = {
    "GL/gl.h": "typedef unsigned int GLuint, GLenum; typedef int GLint, GLsizei;\n",
    "EGL/egl.h": "typedef int EGLint;\n",
    "EGL/eglext.h": "typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR;\n",
    "vdpau/vdpau.h": (
        "typedef unsigned int VdpDevice, VdpVideoSurface, VdpOutputSurface, VdpStatus, VdpFuncId;\n"
        "typedef VdpStatus VdpGetProcAddress(VdpDevice, VdpFuncId, void **);\n"
    ),
}

# Structs passed by value whose members are all integers and pointers. Another one would have to be looked at:
# members of floating type travel in other registers.
INTEGER_STRUCTS = {"CUeglFrame", "CUmemLocation", "CUipcMemHandle", "CUipcEventHandle"}

# Types that have a code of their own (see above).
CODES = {
    "pointer": "p",
    "CUdeviceptr": "a",
    "CUdeviceptr *": "A",
    "CUmemGenericAllocationHandle": "h",
    "CUmemGenericAllocationHandle *": "H",
}

_PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_TYPEDEF = re.compile(rf"\bPFN_(cu[A-Z]\w*?)_v(\d{{4,5}})({PER_THREAD_SUFFIX})?\s*\)")
_NAME = re.compile(rf"(cu[A-Z]\w*?)(?:_v(\d+))?({PER_THREAD_SUFFIX})?")
_INTEGER_CODES = {1: "c", 2: "s", 4: "i", 8: "l"}
_FLOAT_CODES = {4: "f", 8: "d"}
# __builtin_classify_type's answers (gcc's typeclass.h) for the kinds that occur.
_INTEGER_KINDS, _POINTER_KIND, _REAL_KIND, _STRUCT_KINDS = {1, 2, 3, 4}, 5, 8, {12, 13}


class PrototypeError(Exception):
    """A header holds something that this reader does not understand; the message names it."""


@dataclass(frozen=True)
class Prototype:
    """One entry point: the codes of its arguments, and since which driver version its base name means it."""

    name: str
    signature: str
    since: int


def base_name(name: str) -> str:
    """Return what cuGetProcAddress calls this entry point: without version and per-thread-stream suffix."""
    return _name_parts(name)[0]


def read_prototypes(folder: Path, compiler: str = "cc") -> dict[str, Prototype]:
    """Return name → prototype for every entry point that the headers in `folder` declare.

    Raises what `_read_signatures` and `_read_versions` raise.
    """
    signatures = _read_signatures(folder, compiler)
    versions = _read_versions(folder, signatures.keys())
    return {name: Prototype(name, signature, versions[name]) for name, signature in signatures.items()}


def _name_parts(name: str) -> tuple[str, int, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise PrototypeError(f"{name} is not the name of an entry point")
    return match[1], int(match[2] or 1), match[3] or ""


def _read_versions(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Return name → driver version. The n-th typedef of a base name is its n-th symbol's.

    Raises PrototypeError where the two are not equally many.
    """
    typedefs: dict[tuple[str, str], set[int]] = {}
    for header in TYPEDEF_HEADERS:
        if (folder / header).is_file():
            for base, version, per_thread in _TYPEDEF.findall((folder / header).read_text()):
                typedefs.setdefault((base, per_thread), set()).add(int(version))
    symbols: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in names:
        base, number, per_thread = _name_parts(name)
        symbols.setdefault((base, per_thread), []).append((number, name))
    versions: dict[str, int] = {}
    for key, numbered in symbols.items():
        known = sorted(typedefs.get(key, ()))
        if len(known) != len(numbered):
            raise PrototypeError(f"{key[0]}{key[1]} has {len(numbered)} symbols but the typedefs {known}")
        versions |= {name: version for (_, name), version in zip(sorted(numbered), known, strict=True)}
    return versions


def _read_signatures(folder: Path, compiler: str) -> dict[str, str]:
    """Return name → signature.

    Raises PrototypeError when one name has two prototypes that would be passed differently, or when a type is
    of a kind that no code stands for; subprocess.CalledProcessError when the compiler refuses a header.
    """
    headers = [name for name in HEADERS if (folder / name).is_file()]
    if "cuda.h" not in headers:
        raise PrototypeError(f"{folder} holds no cuda.h")
    with tempfile.TemporaryDirectory() as scratch:
        flags = [*_stand_in_flags(Path(scratch)), f"-I{folder}"]
        prototypes: set[tuple[str, tuple[str, ...]]] = set()
        for definitions in DEFINITIONS:
            text = _preprocess(headers, [compiler, *flags, *definitions])
            prototypes |= {(name, _argument_types(arguments)) for name, arguments in _PROTOTYPE.findall(text)}
        types = {kind for _, arguments in prototypes for kind in arguments} - CODES.keys()
        codes = _type_codes(
            sorted(types), headers, [compiler, *flags, "-D__CUDA_API_VERSION_INTERNAL"], Path(scratch)
        )
    codes |= CODES
    signatures: dict[str, str] = {}
    for name, kinds in prototypes:
        signature = "".join(codes[kind] for kind in kinds)
        if signatures.setdefault(name, signature) != signature:
            raise PrototypeError(f"{name} is declared as ({signatures[name]}) and as ({signature})")
    return signatures


def _stand_in_flags(scratch: Path) -> list[str]:
    for name, text in STAND_INS.items():
        path = scratch / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return [f"-I{scratch}"]


def _includes(headers: list[str]) -> str:
    # cudaVDPAU.h does not include what it needs.
    return "".join(f"#include <{name}>\n" for name in ("vdpau/vdpau.h", *headers))


def _preprocess(headers: list[str], command: list[str]) -> str:
    command = [*command, "-E", "-P", "-xc", "-"]
    return subprocess.run(
        command, input=_includes(headers), capture_output=True, text=True, check=True
    ).stdout


def _argument_types(arguments: str) -> tuple[str, ...]:
    """Return the types of a prototype's arguments, pointers and arrays as one of CODES."""
    arguments = " ".join(arguments.split())
    if arguments in ("", "void"):
        return ()
    types = []
    for argument in arguments.split(","):
        words = [word for word in argument.replace("*", " * ").split() if word != "const"]
        if "*" in argument or "[" in argument:
            pointed = f"{words[0]} *"
            types.append(pointed if pointed in CODES and argument.count("*") == 1 else "pointer")
            continue
        unnamed = len(words) == 1 or words[-1] in ("int", "char", "short", "long")
        types.append(" ".join(words if unnamed else words[:-1]))
    return tuple(types)


def _type_codes(types: list[str], headers: list[str], command: list[str], scratch: Path) -> dict[str, str]:
    """Ask the compiler for kind and size of each type and return type → code."""
    lines = [
        f'\tprintf("%d %zu {kind}\\n", __builtin_classify_type(*({kind} *)0), sizeof({kind}));'
        for kind in types
    ]
    source = f"#include <stdio.h>\n{_includes(headers)}int main(void)\n{{\n" + "\n".join(lines) + "\n}\n"
    program = scratch / "kinds"
    subprocess.run([*command, "-xc", "-", "-o", str(program)], input=source, text=True, check=True)
    answer = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    codes = {}
    for line in answer.splitlines():
        kind, size, name = line.split(" ", 2)
        codes[name] = _code(name, int(kind), int(size))
    return codes


def _code(name: str, kind: int, size: int) -> str:
    if kind in _INTEGER_KINDS and size in _INTEGER_CODES:
        return _INTEGER_CODES[size]
    if kind == _POINTER_KIND:
        return "p"
    if kind == _REAL_KIND and size in _FLOAT_CODES:
        return _FLOAT_CODES[size]
    if kind in _STRUCT_KINDS and name in INTEGER_STRUCTS:
        return f"{{{size}}}"
    raise PrototypeError(f"no code for the type {name} (kind {kind}, {size} bytes)")
