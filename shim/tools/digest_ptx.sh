#!/bin/sh
# Compiles tools/digest.cu into tools/digest.ptx: text that any driver since CUDA 9 translates for any GPU since Pascal. Needs a
# clang with the NVPTX target (Debian's has it); only for a change of the kernel.
set -eu
cd "$(dirname "$0")"
"${CLANG:-clang}" -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib -Wno-unknown-cuda-version -Xclang -target-feature \
	-Xclang +ptx60 -O3 -S -o - digest.cu |
	sed -e 's|//.*||' -e 's/[[:space:]]*$//' -e '/^$/d' -e 's/\t/ /g' -e 's/^ *//' >digest.ptx
