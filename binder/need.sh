#!/bin/sh
# Makes sure that this machine has something, and prints its path:
#   need.sh python    Python 3.10 or newer with venv
#   need.sh oldest-python   Python 3.10, or the oldest that is newer; pyenv's are looked for, too
#   need.sh cc        a C compiler and make
#   need.sh cxx       a C++ compiler, and the sanitizers' libraries where they are apart: for the tests
#   need.sh aarch64   a cross compiler for aarch64 and an emulator: for the tests
#   need.sh browser   Chromium or Chrome
# What is missing comes from the system's packages, with apt-get or dnf, as root or by sudo without a password;
# otherwise it says what to install and fails. Called by the Makefile.
set -eu

say() { echo "$*" >&2; }

python_path() {
	for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
		if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
			command -v "$name"
			return
		fi
	done
	return 1
}

oldest_python_path() {
	for name in python3.10 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.*/bin/python3 python3.11 python3.12 python3; do
		if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
			command -v "$name"
			return
		fi
	done
	return 1
}

cc_path() {
	command -v make >/dev/null && command -v "${CC:-cc}"
}

cxx_path() {
	command -v "${CXX:-c++}"
}

aarch64_path() {
	command -v qemu-aarch64-static >/dev/null && command -v aarch64-linux-gnu-gcc
}

browser_path() {
	for name in chromium chromium-browser google-chrome google-chrome-stable; do
		# Ubuntu's chromium-browser is a stub that asks for a snap: only one that answers counts.
		if "$name" --version >/dev/null 2>&1; then
			command -v "$name"
			return
		fi
	done
	return 1
}

packages() { # of the thing $1, for the package manager $2
	case "$1/$2" in
	*python/apt-get) echo python3 python3-venv ;;
	*python/dnf) echo python3.12 ;;
	cc/apt-get) echo gcc libc6-dev make ;;
	cc/dnf) echo gcc glibc-devel make ;;
	cxx/apt-get) echo g++ ;;
	cxx/dnf) echo gcc-c++ libasan libubsan libtsan ;;
	aarch64/apt-get) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static ;;
	aarch64/dnf) echo gcc-aarch64-linux-gnu qemu-user-static ;;
	browser/*) echo chromium ;;
	esac
}

install() { # the packages $@ with the manager
	if [ "$(id -u)" = 0 ]; then
		as_root=
	elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
		as_root='sudo -n'
	else
		return 1
	fi
	say "Installing $* with $manager."
	if [ "$manager" = apt-get ]; then
		$as_root apt-get update -q >&2 || true # an old list is better than none
		$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@" >&2
	else
		$as_root dnf install -qy "$@" >&2
	fi
}

thing=${1:-}
case "$thing" in
python | oldest-python | cc | cxx | aarch64 | browser) ;;
*) say "usage: need.sh python|oldest-python|cc|cxx|aarch64|browser" && exit 2 ;;
esac
find="$(echo "$thing" | tr - _)_path"
if "$find"; then
	exit
fi
for manager in apt-get dnf none; do
	command -v "$manager" >/dev/null && break
done
if [ "$manager" = none ]; then
	say "This machine has no $thing, and neither apt-get nor dnf to install it with: please install it."
	exit 1
fi
wanted=$(packages "$thing" "$manager")
# shellcheck disable=SC2086
if install $wanted && "$find"; then
	exit
fi
say "This machine has no suitable $thing. Please install it: sudo $manager install $wanted"
exit 1
