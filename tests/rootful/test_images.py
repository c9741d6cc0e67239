# SPDX-License-Identifier: GPL-3.0-or-later
"""Images for real: namespaces, programs, full disks and kills."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctrmgr.errors import ConflictError, CtrmgrError, HostError, SpecError, UnsupportedError
from ctrmgr.images import build, exporting, importing, oci, removal, staging, store
from ctrmgr.images.sandbox import Sandbox
from ctrmgr.images.treetar import TreeTar
from ctrmgr.images.unpack import Limits
from tests.unit.test_images_oci import layout as oci_layout

pytestmark = pytest.mark.usefixtures("apart")


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state"
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(path))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small root filesystem with everything that is hard to carry."""
    top = tmp_path / "tree"
    for name in ("bin", "sbin", "etc", "dev", "home/user", "deep/" + "x" * 120 + "/" + "y" * 120):
        (top / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", top / "bin/busybox")
    os.link(top / "bin/busybox", top / "bin/sh")
    (top / "sbin/init").symlink_to("/bin/busybox")
    (top / "etc/os-release").write_text('NAME="Tiny Linux"\nVERSION_ID="1.2"\nPRETTY_NAME="Tiny Linux 1.2"\n')
    (top / "home/user/file").write_text("mine")
    (top / ("deep/" + "x" * 120 + "/" + "y" * 120 + "/é")).write_text("long")
    os.chown(top / "home/user", 1000, 1000)
    os.chown(top / "home/user/file", 1000, 1001)
    (top / "bin/busybox").chmod(0o4755)
    os.setxattr(top / "home/user/file", "user.note", b"\xff\0bytes")
    (top / "bin/ping").write_bytes(b"#!/bin/sh\n")
    os.setxattr(top / "bin/ping", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    with (top / "sparse").open("wb") as file:
        file.truncate(16 << 20)
    os.mkfifo(top / "etc/fifo")
    os.mknod(top / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for directory, _, _ in os.walk(top):
        os.utime(directory, (1e9, 1e9))
    return top


def snapshot(top: str | Path) -> dict[str, tuple[object, ...]]:
    """Everything of a tree that an image keeps: not devices, and not the mode of its root, which the store sets."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISCHR(status.st_mode):
                continue
            if stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            xattrs = [(key, os.getxattr(path, key)) for key in _user_xattrs(path)]
            facts = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_nlink,
                int(status.st_mtime),
                content,
                xattrs,
            )
            found[os.path.relpath(path, top)] = facts
    return found


def _user_xattrs(path: str) -> list[str]:
    return sorted(name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user."))


def tar_of(tree: Path, target: Path, option: str = "") -> Path:
    subprocess.run(
        ["tar", "--xattrs", "--xattrs-include=*", "-S", "-C", tree, *option.split(), "-cf", target, "."], check=True
    )
    return target


def leftovers(state: Path) -> list[str]:
    return [path.name for path in state.glob("images/.*")]


def check(image: store.Image, tree: Path) -> None:
    assert snapshot(image.rootfs) == snapshot(tree)
    assert image.metadata["init"] == "/sbin/init"
    assert image.metadata["halt-signal"] == str(int(signal.SIGUSR2))
    assert (image.metadata["os"], image.metadata["release"]) == ("Tiny Linux", "1.2")
    assert not os.path.exists(image.rootfs + "/dev/null")
    capability = os.getxattr(image.rootfs + "/bin/ping", "security.capability")
    assert capability[1:4] in (b"\0\0\2", b"\0\0\3")
    assert os.stat(image.rootfs + "/sparse").st_blocks < 100


FORMATS: dict[str, Callable[[Path, Path], Path]] = {
    "directory": lambda tree, tmp: tree,
    "tar": lambda tree, tmp: tar_of(tree, tmp / "i.tar"),
    "gz": lambda tree, tmp: tar_of(tree, tmp / "i.tar.gz", "-z"),
    "xz": lambda tree, tmp: tar_of(tree, tmp / "i.tar.xz", "-J"),
    "zst": lambda tree, tmp: tar_of(tree, tmp / "i.tar.zst", "--zstd"),
    "bz2": lambda tree, tmp: tar_of(tree, tmp / "i.tar.bz2", "-j"),
    "squashfs": lambda tree, tmp: squashfs(tree, tmp / "i.squashfs"),
}


def squashfs(tree: Path, target: Path) -> Path:
    subprocess.run(["mksquashfs", tree, target, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    return target


@pytest.mark.parametrize("form", FORMATS)
def test_import(form: str, tree: Path, tmp_path: Path, state_dir: Path) -> None:
    path = FORMATS[form](tree, tmp_path)
    image, new = importing.import_image([str(path)], alias="tiny")
    assert new
    check(image, tree)
    if form != "directory":
        assert image.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    again, new = importing.import_image([str(path)], fingerprint=image.fingerprint)
    assert not new
    assert again.fingerprint == store.find("tiny").fingerprint == image.fingerprint
    assert leftovers(state_dir) == []


def test_layers_of_zstd(tree: Path, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tar_of(tree, tmp_path / "layer.tar.zst", "--zstd").read_bytes()
    oci_layout(tmp_path / "oci", layer)
    packed = tar_of(tmp_path / "oci", tmp_path / "oci.tar")
    for path in (packed, tmp_path / "oci"):  # from a file, and from a stream
        image, new = importing.import_image([str(path)])
        assert new
        check(image, tree)
        assert leftovers(state_dir) == []
    oci_layout(tmp_path / "cut", layer[:-60])
    with pytest.raises(SpecError, match=r"^`.*/cut\.tar`: the archive ends in the middle$"):
        importing.import_image([str(tar_of(tmp_path / "cut", tmp_path / "cut.tar"))])
    assert leftovers(state_dir) == []
    monkeypatch.setattr(oci, "ZSTD", "/nowhere/zstd")
    removal.delete(image.fingerprint)
    with pytest.raises(HostError, match="needs the program zstd"):
        importing.import_image([str(tmp_path / "oci")])
    assert leftovers(state_dir) == []


def test_wrong_fingerprint(tree: Path, tmp_path: Path, state_dir: Path) -> None:
    path = tar_of(tree, tmp_path / "i.tar")
    for paths in ([str(path)], [str(tree)]):
        with pytest.raises(ConflictError, match="has the fingerprint"):
            importing.import_image(paths, fingerprint="0" * 64)
    assert store.fingerprints() == []


METADATA = "architecture: x86_64\ncreation_date: 1\nproperties:\n  os: Own\n  release: '9'\n  description: Own 9\n"


def test_unified_and_split(tree: Path, tmp_path: Path, state_dir: Path) -> None:
    unified = tmp_path / "u"
    (unified / "templates").mkdir(parents=True)
    (unified / "templates/hostname.tpl").write_text("{{ container.name }}\n")
    (unified / "metadata.yaml").write_text(METADATA.replace("x86_64", os.uname().machine))
    meta = tar_of(unified, tmp_path / "meta.tar.xz", "-J")
    shutil.copytree(tree, unified / "rootfs", symlinks=True, ignore=shutil.ignore_patterns("fifo", "null"))
    whole = tar_of(unified, tmp_path / "unified.tar.gz", "-z")
    root = squashfs(tree, tmp_path / "rootfs.squashfs")
    image, _ = importing.import_image([str(whole)])
    split, _ = importing.import_image([str(meta), str(root)])
    both = hashlib.sha256(meta.read_bytes() + root.read_bytes()).hexdigest()
    assert split.fingerprint == both
    for one in (image, split):
        assert one.metadata["description"] == "Own 9"
        assert one.metadata["os"] == "Own"
        assert Path(one.path, "templates/hostname.tpl").read_text() == "{{ container.name }}\n"
    assert snapshot(split.rootfs) == snapshot(tree)
    with pytest.raises(SpecError, match="no root filesystem"):
        importing.import_image([str(meta)])
    with pytest.raises(SpecError, match=r"no metadata\.yaml"):
        importing.import_image([str(tar_of(tree, tmp_path / "i.tar")), str(root)])
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2"])
def test_export_is_deterministic_and_comes_back(ending: str, tree: Path, tmp_path: Path) -> None:
    image, _ = importing.import_image([str(tree)], description="a tree")
    first, second = tmp_path / ("1" + ending), tmp_path / ("2" + ending)
    exporting.export(image, str(first))
    exporting.export(image, str(second))
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(ConflictError):
        exporting.export(image, str(first))
    back, new = importing.import_image([str(first)])
    assert new
    check(back, tree)
    assert back.metadata["description"] == "a tree"
    if ending != ".tar.zst":
        with tarfile.open(first) as tar:
            assert tar.getnames()[0] == "metadata.yaml"


def test_builtin_keeps_its_init_through_export(tmp_path: Path) -> None:
    image = store.find(store.BUSYBOX)
    exporting.export(image, str(tmp_path / "b.tar"))
    back, _ = importing.import_image([str(tmp_path / "b.tar")])
    assert back.metadata["init"] == "builtin"
    assert snapshot(back.rootfs) == snapshot(image.rootfs)


def test_other_architecture(tree: Path, state_dir: Path) -> None:
    program = bytearray((tree / "bin/busybox").read_bytes()[:4096])
    program[18:20] = (22).to_bytes(2, "little")
    (tree / "bin/busybox").write_bytes(program)
    with pytest.raises(UnsupportedError, match="s390x"):
        importing.import_image([str(tree)])
    assert leftovers(state_dir) == []


def test_squashfs_with_devices(tree: Path, tmp_path: Path, state_dir: Path) -> None:
    os.mknod(tree / "etc/kmem", stat.S_IFCHR, os.makedev(1, 2))
    with pytest.raises(SpecError, match="`etc/kmem` is a device node"):
        importing.import_image([str(squashfs(tree, tmp_path / "i.squashfs"))])
    with pytest.raises(SpecError, match="`etc/kmem` is a device node"):
        importing.import_image([str(tree)])
    assert leftovers(state_dir) == []


def test_squashfs_limits(tree: Path, tmp_path: Path, state_dir: Path) -> None:
    path = str(squashfs(tree, tmp_path / "i.squashfs"))
    for limits in (Limits(bytes=1 << 20), Limits(files=5)):
        with pytest.raises(SpecError, match="larger than"):
            importing.import_image([path], limits=limits)
    assert leftovers(state_dir) == []


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "directory"])
@pytest.mark.parametrize("damage", ["truncated", "flipped head", "flipped middle"])
def test_corrupt_archive(form: str, damage: str, tree: Path, tmp_path: Path, state_dir: Path) -> None:
    path = FORMATS[form](tree, tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) * 2 // 3]
    elif form == "tar":
        # Content has no checksum in a plain tar; every header has.
        at = 0 if damage == "flipped head" else bytes(data).index(b"./home/user/file\0")
        data[at + 148 : at + 154] = b"notoct"
    else:
        at = 20 if damage == "flipped head" else len(data) // 2
        data[at : at + 40] = bytes(byte ^ 0x5A for byte in data[at : at + 40])
    path.write_bytes(data)
    with pytest.raises(CtrmgrError) as caught:
        importing.import_image([str(path)])
    assert isinstance(caught.value, SpecError), caught.value
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert leftovers(state_dir) == []
    assert store.fingerprints() == []


@pytest.fixture
def small_disk(state_dir: Path) -> Iterator[Path]:
    state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k,mode=755", "tmpfs", state_dir], check=True)
    try:
        yield state_dir
    finally:
        subprocess.run(["umount", state_dir], check=True)


@pytest.mark.parametrize("form", ["directory", "gz", "zst", "squashfs"])
def test_disk_full(form: str, tree: Path, tmp_path: Path, small_disk: Path) -> None:
    path = FORMATS[form](tree, tmp_path)
    with pytest.raises(HostError, match="disk is full"):
        importing.import_image([str(path)])
    assert os.listdir(small_disk / "images") == []


def test_disk_full_on_first_use(small_disk: Path) -> None:
    with pytest.raises(HostError):
        store.find(store.BUSYBOX)
    assert os.listdir(small_disk / "images") == []


def test_many_first_users_at_once(state_dir: Path) -> None:
    code = "from ctrmgr.images import store; print(store.find(store.BUSYBOX).fingerprint)"
    users = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    found = {user.communicate(timeout=60)[0] for user in users}
    assert [user.returncode for user in users] == [0] * 8
    assert len(found) == 1
    assert len(store.fingerprints()) == 1
    assert leftovers(state_dir) == []


def test_killed_in_the_middle(tree: Path, tmp_path: Path, state_dir: Path) -> None:
    path = tmp_path / "slow"
    os.mkdir(path)
    for number in range(3000):
        (path / str(number)).write_bytes(b"x" * 2000)
    code = f"from ctrmgr.images import importing; importing.import_image([{str(path)!r}])"
    command = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while not any((state_dir / "images").glob(".new-*/tree/1*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    command.kill()
    command.wait()
    assert len(leftovers(state_dir)) == 1
    time.sleep(0.3)  # the sandbox dies with its parent: nobody writes any more
    staging.repair()
    assert leftovers(state_dir) == []
    assert store.fingerprints() == []
    importing.import_image([str(tree)])


def test_the_sandbox_is_an_empty_room(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    outside = os.getpid()

    def task() -> dict[str, str]:
        result = {"root": " ".join(sorted(os.listdir("/"))), "pid": str(os.getpid())}
        attempts: dict[str, Callable[[], object]] = {
            "up": lambda: os.stat("/../../../../etc/passwd"),
            "kill": lambda: os.kill(outside, 0),
            "mknod": lambda: os.mknod("/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
            "trusted": lambda: os.setxattr("/mine", "trusted.x", b"y"),
            "unmapped": lambda: os.chown("/mine", 65536, 0),
            "net": lambda: os.stat("/proc"),
        }
        for name, attempt in attempts.items():
            try:
                attempt()
                result[name] = "allowed"
            except OSError as error:
                result[name] = str(error.errno)
        os.chown("/mine", 1000, 44)
        return result

    result = Sandbox(str(tmp_path), task).wait()
    assert result.pop("root") == "mine"
    assert result.pop("pid") == "1"
    assert "allowed" not in result.values(), result
    assert (os.stat(tmp_path / "mine").st_uid, os.stat(tmp_path / "mine").st_gid) == (1000, 44)


def test_tools_in_the_sandbox_are_read_only(tmp_path: Path) -> None:
    room, host = tmp_path / "room", tmp_path / "host"
    room.mkdir()
    host.mkdir()
    (host / "file").write_text("the host's")
    (host / "alone").write_text("the host's")

    def task() -> dict[str, str]:
        result = {"read": Path("/host/file").read_text(), "see": " ".join(sorted(os.listdir("/")))}
        for name in ("/host/new", "/host/file", "/alone"):
            try:
                Path(name).write_text("mine")
                result[name] = "allowed"
            except OSError as error:
                result[name] = os.strerror(error.errno or 0)
        Path("/image/new").touch()
        return result

    result = Sandbox(str(room), task, tools={"host": str(host), "alone": str(host / "alone")}).wait()
    assert result.pop("read") == "the host's"
    assert result.pop("see") == "alone host image"
    assert set(result.values()) == {"Read-only file system"}
    assert (room / "new").exists()
    assert os.listdir(room / ".room") == []


def test_a_task_that_dies_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="died"):
        Sandbox(str(tmp_path), lambda: os._exit(3)).wait()


def test_the_same_tree_is_the_same_stream(tree: Path) -> None:
    def digest() -> str:
        found = hashlib.sha256()
        tar = TreeTar(found.update)
        tar.tree(str(tree), "")
        tar.end()
        return found.hexdigest()

    first = digest()
    assert digest() == first
    (tree / "etc/new").touch()
    assert digest() != first


@pytest.mark.parametrize("what", ["debian", "debian:", "plan9:four", "debian:../x", "debian:a b"])
def test_build_of_what_nobody_knows(what: str) -> None:
    with pytest.raises(SpecError, match="cannot be built"):
        build.build(what)


def test_build_of_a_suite_that_is_not_there(state_dir: Path) -> None:
    with pytest.raises(HostError, match="mmdebstrap cannot build"):
        build.build("debian:nosuchsuite")
    assert leftovers(state_dir) == []


def test_delete(tree: Path, state_dir: Path) -> None:
    importing.import_image([str(tree)], alias="tiny")
    removal.delete("tiny")
    assert os.listdir(state_dir / "images") == []
    assert os.listdir(state_dir / "aliases") == []


def test_a_new_directory_is_not_taken_for_a_left_over(state_dir: Path) -> None:
    store.make_dirs()

    def work(_: int) -> bool:
        path, fd = staging._locked_directory()
        try:
            staging.repair()
            return os.path.isdir(path)
        finally:
            os.close(fd)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))
    staging.repair()
    assert leftovers(state_dir) == []
