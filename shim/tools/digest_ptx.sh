#!/bin/sh
# Compiles tools/digest.cu into src/mover/copying/digest_ptx.h: PTX text that any driver since CUDA 9 translates for any GPU since
# Pascal. Needs a clang with the NVPTX target (Debian's has it); only for a change of the kernel.
set -eu
cd "$(dirname "$0")/.."
{
	echo '/* PTX of tools/digest.cu, made by tools/digest_ptx.sh: do not edit.  */'
	echo 'static const char digest_ptx[] ='
	"${CLANG:-clang}" -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib -Wno-unknown-cuda-version -Xclang -target-feature \
		-Xclang +ptx60 -O3 -S -o - tools/digest.cu |
		sed -e 's|//.*||' -e 's/[[:space:]]*$//' -e '/^$/d' -e 's/[\\"]/\\&/g' -e 's/\t/ /g' -e 's/^ *\(.*\)$/	"\1\\n"/'
	echo '	;'
} >src/mover/copying/digest_ptx.h
