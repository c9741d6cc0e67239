# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance made: planned, its ids and addresses claimed, its own layer and record written. Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import ended, record, repair
from ctrmgr.backend.record import crash
from ctrmgr.errors import ConflictError, HostError, SpecError
from ctrmgr.host import net
from ctrmgr.images import store
from ctrmgr.plan import instance as planning
from ctrmgr.plan import network, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.images.store import Image
    from ctrmgr.plan.instance import Claims

    Devices = Mapping[str, Mapping[str, str]]


class Wish:
    """What an instance is to be: everything that `launch` and `create` are told."""

    __slots__ = ("config", "devices", "ephemeral", "ignore_unsupported", "image", "name", "profiles", "ref", "source")

    def __init__(
        self,
        image: str,
        name: str = "",
        *,
        profiles: Sequence[str] = ("default",),
        config: Mapping[str, str] | None = None,
        devices: Devices | None = None,
        ephemeral: bool = False,
        ignore_unsupported: bool = False,
    ) -> None:
        self.image, self.name, self.profiles = image, name, list(profiles)
        self.config, self.devices = dict(config or {}), {key: dict(value) for key, value in (devices or {}).items()}
        self.ephemeral, self.ignore_unsupported = ephemeral, ignore_unsupported
        self.ref = image
        """What the image is called in lists."""
        self.source = ""
        """The directory of an instance: what that one has written this one begins with, in place of nothing."""


def compiled(wish: Wish, image: Image) -> list[list[str]]:
    """The template rows of a wish: from the cache when nothing has changed, compiled (cold) otherwise."""
    if not wish.config and not wish.devices:
        rows = template.cached(image, wish.profiles)
        if rows is not None:
            return rows
    from ctrmgr.backend import leases
    from ctrmgr.plan import compile

    leases.tell()
    return compile.compile_template(
        image, wish.profiles, wish.config, wish.devices, ignore_unsupported=wish.ignore_unsupported
    )


def create(wish: Wish) -> str:
    """Make an instance and return its name. Raises SpecError, NotFoundError, ConflictError, HostError."""
    name = _name(wish)
    repair.sweep()
    record.close_instances()
    image = store.find(wish.image)
    _remember(wish)
    with state.Lock(image.path, shared=True):  # `image delete` takes it alone
        rows = compiled(wish, image)
        _wait_for_delete(name)
        aside = f"{record.instances_dir()}/.new-{name}"
        with NewDirectory(aside):
            crash("create-made")
            try:
                _fill(aside, name, wish, image, rows)
            except BaseException:
                record.remove_tree(aside)
                raise
    return name


def foreseen(wish: Wish) -> list[list[str]]:
    """The plan that `create` would write if it were called now; nothing is taken. Raises what `create` does. Cold."""
    from ctrmgr.plan import foresight

    name = _name(wish)
    image = store.find(wish.image)
    _remember(wish)
    rows = compiled(wish, image)
    _refuse_taken(name)
    return foresight.plan(rows, name)


def _name(wish: Wish) -> str:
    if os.geteuid():
        raise HostError("making an instance needs root: ordinary users cannot yet", hint="run it with sudo")
    return record.check_name(wish.name or made_up_name())


def _refuse_taken(name: str) -> None:
    if os.path.exists(record.home(name)):
        raise ConflictError(f"an instance `{name}` exists already", hint="choose another name, or delete it first")


def _remember(wish: Wish) -> None:
    """What a device is that was given by a name of today."""
    if wish.devices:
        from ctrmgr.devices import driver
        from ctrmgr.devices import rows as parts

        known = {device: given for device, given in wish.devices.items() if given.get("type") in driver.DRIVERS}
        wish.devices.update({device: parts.remembered(given) for device, given in known.items()})


class NewDirectory(state.Lock):
    """Make a directory and lock it. Raises ConflictError when somebody has made it, HostError."""

    __slots__ = ()

    def __enter__(self) -> state.Lock:
        while True:
            try:
                os.mkdir(self.path, 0o711)
            except FileExistsError:
                name = self.path.rpartition("/.new-")[2]
                raise ConflictError(f"`{name}` is being made by another command") from None
            except OSError as error:
                raise state.unwritable(self.path, error) from error
            try:
                return super().__enter__()
            except FileNotFoundError:
                pass  # before it was locked, a sweep took it for a left-over


def _wait_for_delete(name: str) -> None:
    try:
        with state.Lock(f"{record.instances_dir()}/.del-{name}"):
            pass
    except FileNotFoundError:
        return
    repair.sweep()


def _fill(aside: str, name: str, wish: Wish, image: Image, rows: list[list[str]]) -> None:
    _refuse_taken(name)
    claims = planning.claim(planning.needs(rows), name)
    crash("create-claimed")
    try:
        plan = planning.fill(rows, name=name, claims=claims)
        if any(row[0] == "request" for row in plan):
            from ctrmgr.backend import giving

            plan = giving.settle(name, plan, repair.instance, starts=False)
        _make_layer(aside, image, name, claims, wish.source)
        config = [["image", image.fingerprint, wish.ref], *(["profile", profile] for profile in wish.profiles)]
        config += [["config", key, value] for key, value in wish.config.items()]
        config += [
            ["device", key, field, value] for key, device in wish.devices.items() for field, value in device.items()
        ]
        config += [["ephemeral", "1" if wish.ephemeral else "0"]]
        state.write_flat(f"{aside}/plan", plan)
        state.write_flat(f"{aside}/config", config)
        crash("create-written")
        os.rename(aside, record.home(name))
        crash("create-named")
    except BaseException as error:
        ended.release(name)
        if isinstance(error, OSError):
            raise state.unwritable(aside, error) from error
        raise


def _make_layer(aside: str, image: Image, name: str, claims: Claims, source: str) -> None:
    """The instance's own layer: what differs from the image. Ids on disk are the image's; the mount maps them."""
    os.mkdir(f"{aside}/work", 0o755)
    if source:
        from ctrmgr.backend import snapshots

        snapshots.copy(source, aside)
    else:
        os.mkdir(f"{aside}/upper", 0o755)
        root = os.stat(image.rootfs)
        os.chmod(f"{aside}/upper", root.st_mode & 0o7777)
        os.chown(f"{aside}/upper", root.st_uid, root.st_gid)
    servers = net.nameservers() if claims.addresses else ([], [])
    files = network.files(name, claims.addresses, *servers)
    etc = f"{image.rootfs}/etc"
    if os.path.islink(etc) or not os.path.isdir(etc):
        return
    try:
        os.mkdir(f"{aside}/upper/etc", 0o755)
        os.chown(f"{aside}/upper/etc", os.stat(etc).st_uid, os.stat(etc).st_gid)
    except FileExistsError:
        pass
    try:
        folder = os.open(f"{aside}/upper/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # a layer's: the instance has made something else of it
    try:
        for path, text in files.items():
            _write(folder, path.removeprefix("etc/"), text, anew=bool(source))
    finally:
        os.close(folder)


def _write(folder: int, name: str, text: str, *, anew: bool) -> None:
    if anew:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            return
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    os.write(fd, text.encode())
    os.close(fd)


def made_up_name() -> str:
    """A name that nobody has yet."""
    from ctrmgr.backend import words

    taken = set(record.names())
    for _ in range(100):
        name = words.pick()
        if name not in taken:
            return name
    raise SpecError("no made-up name is free", hint="give one")
