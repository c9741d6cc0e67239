# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances on this machine: made, started, asked, stopped, deleted. Hot."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import record, repair
from ctrmgr.backend.repair import crash
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, HostError, SpecError, UnsupportedError
from ctrmgr.host import net
from ctrmgr.images import store
from ctrmgr.kernel import control, spawn
from ctrmgr.plan import instance as planning
from ctrmgr.plan import network, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ctrmgr.images.store import Image
    from ctrmgr.plan.instance import Claims

    Devices = Mapping[str, Mapping[str, str]]
    Mend = Callable[[str, spawn.Report], bool]

CANNOT_IDMAP = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
NO_LABEL = (errno.ENOENT, errno.EINVAL)


class Wish:
    """What an instance is to be: everything that `launch` and `create` are told."""

    __slots__ = ("config", "devices", "ephemeral", "ignore_unsupported", "image", "name", "profiles")

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


def compiled(wish: Wish, image: Image) -> list[list[str]]:
    """The template rows of a wish: from the cache when nothing has changed, compiled (cold) otherwise."""
    if not wish.config and not wish.devices:
        rows = template.cached(image, wish.profiles)
        if rows is not None:
            return rows
    from ctrmgr.plan import compile

    return compile.compile_template(
        image, wish.profiles, wish.config, wish.devices, ignore_unsupported=wish.ignore_unsupported
    )


def create(wish: Wish) -> str:
    """Make an instance and return its name. Raises SpecError, NotFoundError, ConflictError, HostError."""
    if os.geteuid():
        raise HostError("making an instance needs root: ordinary users cannot yet", hint="run it with sudo")
    name = record.check_name(wish.name or made_up_name())
    repair.sweep()
    state.make_dir(record.instances_dir())
    image = store.find(wish.image)
    with state.Lock(image.path, shared=True):  # `image delete` takes it alone
        rows = compiled(wish, image)
        _wait_for_delete(name)
        aside = f"{record.instances_dir()}/.new-{name}"
        with NewDirectory(aside):
            crash("create-made")
            try:
                _fill(aside, name, wish, image, rows)
            except BaseException:
                repair.remove_tree(aside)
                raise
    return name


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
    if os.path.exists(record.home(name)):
        raise ConflictError(f"an instance `{name}` exists already", hint="choose another name, or delete it first")
    claims = planning.claim(planning.needs(rows), name)
    crash("create-claimed")
    try:
        plan = planning.fill(rows, name=name, claims=claims)
        _make_layer(aside, image, name, claims)
        config = [["image", image.fingerprint, wish.image], *(["profile", profile] for profile in wish.profiles)]
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
        repair.release(name)
        if isinstance(error, OSError):
            raise state.unwritable(aside, error) from error
        raise


def _make_layer(aside: str, image: Image, name: str, claims: Claims) -> None:
    """The instance's own layer: what differs from the image. Ids on disk are the image's; the mount maps them."""
    for folder in ("upper", "work"):
        os.mkdir(f"{aside}/{folder}", 0o755)
    root = os.stat(image.rootfs)
    os.chmod(f"{aside}/upper", root.st_mode & 0o7777)
    os.chown(f"{aside}/upper", root.st_uid, root.st_gid)
    servers = net.nameservers() if claims.addresses else ([], [])
    files = network.files(name, claims.addresses, *servers)
    etc = f"{image.rootfs}/etc"
    if os.path.islink(etc) or not os.path.isdir(etc):
        return
    os.mkdir(f"{aside}/upper/etc", 0o755)
    os.chown(f"{aside}/upper/etc", os.stat(etc).st_uid, os.stat(etc).st_gid)
    for path, text in files.items():
        fd = os.open(f"{aside}/upper/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, text.encode())
        os.close(fd)


def launch(wish: Wish) -> str:
    """Create and start; an instance that does not start is deleted again. Returns its name."""
    name = create(wish)
    try:
        start(name)
    except BaseException:
        try:
            delete(name, force=True)
        except (ConflictError, HelperError):
            pass  # what went wrong first is what the user must see; the next command mends the rest
        raise
    return name


def start(name: str) -> None:
    """Start a stopped instance. Raises NotFoundError, ConflictError, HostError, HelperError."""
    with record.lock(name):
        repair.instance(name)
        if record.is_running(name):
            raise ConflictError(f"`{name}` is running already")
        _start(name)


def _start(name: str) -> None:
    path, run = record.home(name), record.run_home(name)
    state.make_dir(state.run_dir())
    state.make_dir(run, 0o700)
    crash("start-directory")
    if not os.path.exists(f"{path}/plan"):
        _replan(name)
    try:
        report = spawn.monitor("start", f"{path}/plan", path, run)
        mends: list[Mend] = [_mend_plan, _mend_filter, _mend_label, _mend_link, _mend_layers]
        while report.error and (mend := _mended(name, report, mends)):
            mends.remove(mend)
            report = spawn.monitor("start", f"{path}/plan", path, run)
    except FileNotFoundError as error:
        raise state.corrupt(str(error.filename), 1, "is missing") from None
    crash("start-done")
    if report.error:
        try:
            repair.end_run(name)
        except (CtrmgrError, OSError):
            pass  # the next command tries again; what went wrong first is what the user must see
        raise control.failure(name, report.step, report.detail, report.error)


def _mended(name: str, report: spawn.Report, mends: list[Mend]) -> Mend | None:
    """The first that makes another try worth it; each helps once."""
    return next((mend for mend in mends if mend(name, report)), None)


# What a start may lack and can be given: each looks at how it failed and says whether another try is worth it.


def _mend_plan(name: str, report: spawn.Report) -> bool:
    if report.step != "read the plan":
        return False
    _replan(name)
    return True


def _mend_filter(name: str, report: spawn.Report) -> bool:
    """A filter that is lost or damaged is compiled again from its policy."""
    refused = report.step == "confine init" and "seccomp" in report.detail and report.error == errno.EINVAL
    if report.step != "read the seccomp filter" and not refused:
        return False
    paths = [row[1] for row in record.read_plan(record.home(name)) if row[0] == "seccomp" and os.path.exists(row[1])]
    for path in paths:
        os.rename(path, path + "~")
    try:
        _replan(name)
    except UnsupportedError:
        for path in paths:
            os.rename(path + "~", path)
        return False  # no filter at all can be loaded here, as the start said
    for path in paths:
        state.unlink(path + "~")
    return True


def _mend_label(name: str, report: spawn.Report) -> bool:
    """The AppArmor profile was loaded when the plan was made and is not now; or AppArmor is off."""
    if report.step != "confine init" or "AppArmor" not in report.detail or report.error not in NO_LABEL:
        return False
    _replan(name)
    return True


def _mend_link(name: str, report: spawn.Report) -> bool:
    if report.error != errno.ENODEV or report.step != "make the network link":
        return False
    bring_up(record.read_plan(record.home(name)))
    return True


def _mend_layers(name: str, report: spawn.Report) -> bool:
    if report.error not in CANNOT_IDMAP or report.step != "idmap a layer":
        return False
    from ctrmgr.backend import shift

    shift.shift(record.home(name), record.read_plan(record.home(name)))
    return True


def _replan(name: str) -> None:
    """Compile a damaged plan anew from what the user asked for; ids and addresses are known by their claims. Cold."""
    from ctrmgr.plan import compile

    own = record.Record(name)
    addresses = [["address", "4", address, ""] for address, owner in state.claims("addresses").items() if owner == name]
    rows = compile.recompile(name, store.load(own.image), own.profiles, own.config, own.devices, addresses)
    state.write_flat(f"{own.path}/plan", rows)


def bring_up(plan: Sequence[Sequence[str]]) -> None:
    """Make the managed bridge that the plan's link wants. Raises HelperError, HostError."""
    for row in plan:
        if row[0] == "link":
            bridge = network.load(row[1])
            addresses = (f"{bridge.gateway}/{bridge.prefix}", f"{bridge.gateway6}/{bridge.prefix6}")
            try:
                spawn.run("ctrmgr-net", ("up", row[1], *addresses, "--nat"))
            except HelperError as error:
                raise HostError(
                    f"network `{row[1]}` cannot be made: {error.message}",
                    hint="install `nftables`, or launch with `-p no-network`",
                ) from error


def stop(name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Ask init to shut down and wait; kill what is left after `timeout` seconds (None: the plan's), or at once.

    An ephemeral instance is deleted then. Raises NotFoundError, ConflictError when it is not running.
    """
    with record.lock(name):
        repair.instance(name)
        if not record.is_running(name):
            raise ConflictError(f"`{name}` is not running")
        ephemeral = _ephemeral(name)
        _stop(name, timeout, force)
        if ephemeral:
            _delete(name)


def _ephemeral(name: str) -> bool:
    try:
        return record.Record(name).ephemeral
    except CtrmgrError:  # a damaged record keeps nobody from stopping it, and is kept
        return False


def _stop(name: str, timeout: float | None, force: bool) -> None:
    run = record.run_home(name)
    if force:
        control.ask(run, control.KILL)
    else:
        control.ask(run, control.STOP, arg=max(1, int(timeout * 1000)) if timeout is not None else 0)
    crash("stop-asked")
    try:
        os.rmdir(run)
    except OSError:
        repair.end_run(name)


def restart(name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Stop, if it runs, and start."""
    with record.lock(name):
        repair.instance(name)
        if record.is_running(name):
            _stop(name, timeout, force)
        _start(name)


def signal(name: str, number: int) -> None:
    """Send init a signal."""
    reply = control.ask(record.running(name), control.SIGNAL, arg=number)
    if reply.error:
        raise control.failure(name, reply.step, reply.detail, reply.error)


def delete(name: str, *, force: bool = False) -> None:
    """Remove an instance and all that it has. Raises ConflictError when it is running and `force` is not given."""
    repair.sweep()
    with record.lock(name):
        repair.instance(name)
        if record.is_running(name):
            if not force:
                raise ConflictError(f"`{name}` is running", hint=f"stop it first, or `ctrmgr delete --force {name}`")
            _stop(name, None, True)
        _delete(name)


def _delete(name: str) -> None:
    aside = f"{record.instances_dir()}/.del-{name}"
    try:
        os.rename(record.home(name), aside)
    except OSError as error:
        raise state.unwritable(record.home(name), error) from error
    crash("delete-renamed")
    repair.release(name)
    crash("delete-released")
    repair.remove_tree(aside)


def rename(old: str, new: str) -> None:
    """Rename a stopped instance. Raises ConflictError when it is running or the new name is taken."""
    record.check_name(new)
    with record.lock(old):
        repair.instance(old)
        if record.is_running(old):
            raise ConflictError(f"`{old}` is running", hint="stop it first")
        if os.path.exists(record.home(new)) or os.path.exists(f"{record.instances_dir()}/.new-{new}"):
            raise ConflictError(f"an instance `{new}` exists already")
        repair.start_rename(old, new)


def freeze(name: str, *, thaw: bool = False) -> None:
    """Stop all its processes where they are, or let them go on."""
    reply = control.ask(record.running(name), control.THAW if thaw else control.FREEZE)
    if reply.error:
        raise control.failure(name, reply.step, reply.detail, reply.error)


def made_up_name() -> str:
    """A name that nobody has yet."""
    from ctrmgr.backend import words

    taken = set(record.names())
    for _ in range(100):
        name = words.pick()
        if name not in taken:
            return name
    raise SpecError("no made-up name is free", hint="give one")
