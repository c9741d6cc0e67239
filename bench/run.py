#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure ctrmgr beside the peers that the distribution ships, in one run, and write the ratios.

    bench/run.py [-n ROUNDS] [--count N] [--debian ROOTFS] [--peers a,b] [--out FILE]

Run as root, with `ctrmgr` on the PATH. Every round does every peer in turn, so that a change of the machine's speed
hits all of them alike. Only the ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import Ctrmgr, Peer, available
from timing import CommandFailedError, Results, milliseconds, run

BARE = ["/usr/bin/python3", "-I", "-c", "pass"]


def tiny_rootfs(where: Path) -> Path:
    """A busybox root that sleeps: the same for every peer."""
    for folder in ("bin", "sbin", "dev", "proc", "sys", "etc", "tmp", "run", "root"):
        (where / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", where / "bin/busybox")
    for applet in ("sh", "true", "sleep", "cat", "ls"):
        (where / "bin" / applet).symlink_to("busybox")
    init = where / "sbin/init"
    init.write_text("#!/bin/sh\nexec /bin/sleep 86400\n")
    init.chmod(0o755)
    (where / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (where / "etc/group").write_text("root:x:0:\n")
    return where


def one_round(peer: Peer, results: Results, instance: str) -> None:
    """Every verb once."""

    def timed(row: str, argv: list[str] | None) -> None:
        if argv is not None:
            results.timed(row, peer.name, lambda: milliseconds(argv, env=peer.env, namespace=peer.namespace))

    peer.prepare(instance)
    timed("launch until init runs", peer.launch(instance))
    if instance_failed(results, peer):
        run(peer.delete(instance), env=peer.env, namespace=peer.namespace, check=False)
        return
    timed("exec /bin/true", peer.exec(instance))
    timed("attach a char device", peer.attach(instance))
    timed("detach it", peer.detach(instance))
    timed("list (1 instance)", peer.list())
    stop, start, delete = peer.stop(instance), peer.start(instance), peer.delete(instance)
    if start is not None and stop is not None:
        timed("stop", stop)
        timed("start", start)
        both = [milliseconds(argv, env=peer.env, namespace=peer.namespace) for argv in (stop, delete)]
        results.add("stop + delete", peer.name, sum(both))
    else:
        timed("stop + delete", delete)


def instance_failed(results: Results, peer: Peer) -> bool:
    """Whether the launch just timed left a note instead of a number."""
    return any(note.startswith(f"{peer.name}, launch") for note in results.notes)


def api(peer: Ctrmgr, results: Results, rounds: int) -> None:
    """The Python API in a warm process, against a whole `crun run -d` of the same run."""
    script = Path(__file__).with_name("api.py")
    interpreter = Path(os.path.realpath(shutil.which("ctrmgr") or "ctrmgr")).read_text().splitlines()[0][2:]
    for line in run([interpreter, str(script), str(rounds)], env=peer.env).splitlines():
        row, value = line.split("\t")
        results.add(row, "ctrmgr", float(value))
    for value in results.samples.get("launch until init runs", {}).get("crun", []):
        results.add("API launch (crun: run -d)", "crun", value)


def many(peer: Peer, results: Results, count: int) -> None:
    """`count` idle instances at once: total time to launch them, the list, the memory, and their end."""
    names = [f"many{index}" for index in range(count)]
    for name in names:
        peer.prepare(name)
    before = available_kib()
    begin = time.perf_counter()
    for name in names:
        milliseconds(peer.launch(name), env=peer.env, namespace=peer.namespace)
    results.add(f"launch {count}, ms in all", peer.name, (time.perf_counter() - begin) * 1e3)
    time.sleep(2)
    results.add(
        f"memory for each of {count}, kB (all of it: kernel, processes)", peer.name, (before - available_kib()) / count
    )
    listing = peer.list()
    if listing is not None:
        for _ in range(5):
            results.add(f"list {count}", peer.name, milliseconds(listing, env=peer.env, namespace=peer.namespace))
    begin = time.perf_counter()
    for name in names:
        run(peer.delete(name), env=peer.env, namespace=peer.namespace)
    results.add(f"kill and remove {count}, ms in all", peer.name, (time.perf_counter() - begin) * 1e3)


def available_kib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def debian(peer: Ctrmgr, results: Results, rootfs: Path) -> None:
    """A real image: import, first and tenth launch, delete."""
    archive = peer.scratch / "debian.tar"
    run(["tar", "-C", str(rootfs), "--exclude=./dev/*", "-cf", str(archive), "."])
    size = archive.stat().st_size // 1_000_000
    importing = ["ctrmgr", "image", "import", str(archive), "--alias", "big"]
    results.add(f"import of a {size} MB Debian tar", "ctrmgr", milliseconds(importing, env=peer.env))
    for index in range(1, 11):
        took = milliseconds(["ctrmgr", "launch", "big", f"big{index}", "-p", "offline"], env=peer.env)
        if index in (1, 10):
            results.add(f"launch no. {index} of it", "ctrmgr", took)
    for index in range(1, 11):
        took = milliseconds(["ctrmgr", "delete", "--force", f"big{index}"], env=peer.env)
        results.add("delete one of them", "ctrmgr", took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=0, help="also measure so many idle instances at once")
    parser.add_argument("--debian", type=Path, help="also measure an image made of this root directory")
    parser.add_argument("--peers", default="", help="only these, comma separated")
    parser.add_argument("--out", type=Path, help="write the tables (Markdown) here")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("error: the peers want root", file=sys.stderr)
        return 5
    results = Results()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ctrmgr-bench-", dir="/var/tmp")))
        peers, reasons = available(
            scratch, tiny_rootfs(scratch / "rootfs"), options.peers.split(",") if options.peers else []
        )
        for reason in reasons:
            results.note(reason)
        for peer in peers:
            stack.callback(peer.tear_down)
        for number in range(options.rounds + 1):
            if number == 1:
                results.samples.clear()  # round 0 warms caches and daemons up
                results.notes[:] = reasons
            results.timed("python3 -I -c pass", "ctrmgr", lambda: milliseconds(BARE))
            for peer in peers:
                try:
                    one_round(peer, results, f"bench{number}")
                except CommandFailedError as failure:
                    results.note(f"{peer.name}: {failure}")
        ours = next(peer for peer in peers if isinstance(peer, Ctrmgr))
        api(ours, results, options.rounds)
        if options.count:
            for peer in peers:
                if peer.name in ("ctrmgr", "crun", "lxc"):
                    many(peer, results, options.count)
        if options.debian:
            debian(ours, results, options.debian)
    text = report(results, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def report(results: Results, rounds: int) -> str:
    machine = f"{os.cpu_count()} cores, Linux {os.uname().release.split('-')[0]}"
    lines = [
        (
            f"{rounds} rounds on {machine}, {time.strftime('%Y-%m-%d')}; milliseconds, median [min..max], "
            "whole commands; × is how many times ctrmgr's median the peer takes."
        ),
        "",
        results.markdown("ctrmgr"),
        "",
        *(f"* {note}" for note in results.notes),
        *(f"* {version}" for version in versions()),
    ]
    return "\n".join(lines) + "\n"


def versions() -> list[str]:
    """What was measured, by the tools' own words."""
    asked = (
        ["ctrmgr", "--version"],
        ["crun", "--version"],
        ["lxc-start", "--version"],
        ["podman", "--version"],
        ["lxd", "--version"],
    )
    found = []
    for argv in asked:
        if shutil.which(argv[0]):
            output = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
            found.append(f"{argv[0]}: {output.splitlines()[0] if output else '?'}")
    return found


if __name__ == "__main__":
    sys.exit(main())
