#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# enter.sh ROOT COMMAND…: run a command in a root directory as if that were a machine: own mounts and pids, the host's
# network and cgroups. By pivot_root, since a chrooted process may not make user namespaces. Called under
# `unshare --mount --pid --fork --kill-child`.
set -eu

root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty fuse kvm net/tun loop-control; do
    if [ -c "/dev/$node" ]; then
        mkdir -p "$root/dev/${node%/*}" 2>/dev/null || true
        [ "${node%/*}" != "$node" ] || rmdir "$root/dev/$node" 2>/dev/null || true
        numbers=$(stat -c '%Hr %Lr' "/dev/$node")
        # shellcheck disable=SC2086 # major and minor
        mknod -m 666 "$root/dev/$node" c $numbers
    fi
done
for loop in /sys/block/loop*; do
    mknod "$root/dev/${loop##*/}" b "$(cut -d: -f1 "$loop/dev")" "$(cut -d: -f2 "$loop/dev")"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0 1 2; do
    name=$(echo stdin stdout stderr | cut -d" " -f$((number + 1)))
    ln -s "/proc/self/fd/$number" "$root/dev/$name"
done
while [ "$1" = --bind ]; do
    mkdir -p "$root$2"
    mount --rbind "$2" "$root$2"
    shift 2
done
mkdir -p "$root/.old"
cd "$root"
pivot_root . .old
umount -l /.old
rmdir /.old
cd /src
exec "$@"
