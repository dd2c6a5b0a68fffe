#!/bin/sh
# slurm.sh FOLDER: puts Slurm, with munge and the database of its accounting, into a folder that is mounted over /usr, and prints it.
# Nothing is installed, so root is not needed. Fails where there is no apt, or no such package.
set -eu

PACKAGES='libhwloc15 liblua5.1-0 libmariadb3 libmunge2 munge slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurm-client slurmctld
	slurmd slurmdbd mariadb-server-core mariadb-client-core libaio1 liburing2'

mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9>"$folder/lock"
flock 9 # tests that run side by side
if [ ! -x "$folder/usr/sbin/slurmd" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/debs" "$work/root"
	# shellcheck disable=SC2086  # a list of words
	(cd "$work/debs" && apt-get --quiet=2 -o APT::Sandbox::User=root download $PACKAGES >&2)
	for package in "$work"/debs/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
	# As update-alternatives would.
	for name in slurmctld slurmd slurmstepd; do
		[ ! -x "$work/root/usr/sbin/$name-wlm" ] || ln -sf "$name-wlm" "$work/root/usr/sbin/$name"
	done
	rm -rf "${folder:?}/usr" && mv "$work/root/usr" "$folder/usr"
fi
echo "$folder"
