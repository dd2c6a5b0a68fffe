#!/bin/sh
# criu.sh FOLDER: puts CRIU with the libraries that it needs into a folder, and prints the command that calls it.
# Of a release that starts on today's Linux: that of the distribution of development, from where this Debian's packages come from.
# Nothing is installed, so root is not needed. Fails where there is no apt, or no such package.
set -eu

PACKAGES='criu libc6 libprotobuf-c1 libnl-3-200 libnet9 libbsd0 libmd0 libcap2 libgnutls30t64 libuuid1 libnftables1 libnftnl11
	libmnl0 libxtables12 libjansson4 libedit2 libcompel1 libgmp10 libhogweed6t64 libnettle8t64 libtasn1-6 libp11-kit0 libidn2-0
	libunistring5 libffi8 libtinfo6'

mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9>"$folder/lock" && flock 9 # one fetches it, others wait for that
command="$folder/lib/ld-linux-x86-64.so.2 --library-path $folder/lib $folder/lib/criu"
if [ ! -x "$folder/lib/criu" ]; then
	[ "$(uname -m)" = x86_64 ] || { echo 'CRIU is fetched for x86-64 alone.' >&2; exit 1; }
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root" "$work/lib"
	site=$(apt-get indextargets --format '$(SITE)' | grep '/debian$' | head -n 1)
	keys=$(ls /usr/share/keyrings/debian-archive-keyring.*g* | head -n 1)
	echo "deb [signed-by=$keys] ${site:?no Debian is configured here} unstable main" >"$work/sources.list"
	apt() {
		apt-get --quiet=2 -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
			-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none "$@" >&2
	}
	apt update
	(cd "$work/debs" && apt download $PACKAGES)
	for package in "$work"/debs/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
	find "$work/root" -regex ".*/x86_64-linux-gnu/[^/]*\.so[^/]*" -exec cp -P {} "$work/lib/" \;
	find "$work/root" -type f -path '*bin/criu' -exec cp {} "$work/lib/" \;
	rm -rf "$folder/lib" && mv "$work/lib" "$folder/lib"
fi
$command --version >/dev/null
echo "$command"
