# SPDX-License-Identifier: GPL-3.0-or-later
"""What `import ctrmgr` gives, apart from it: the command line needs none of it, and each hot verb would load it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from ctrmgr.backend.checkup import Finding
    from ctrmgr.backend.detach import Detached
    from ctrmgr.backend.functions import Candidate
    from ctrmgr.backend.info import Info
    from ctrmgr.backend.inventory import Device
    from ctrmgr.backend.observe import Events, Use
    from ctrmgr.backend.partition_list import Partition
    from ctrmgr.remote.handle import Remote


class ExecResult:
    """How a command in an instance ended: its exit code (128+n after signal n) and what it wrote."""

    __slots__ = ("code", "stderr", "stdout")

    def __init__(self, code: int, stdout: bytes, stderr: bytes) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr


class Instance:
    """A handle on an instance by its name. As a context manager it deletes the instance at the end."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Instance({self.name!r})"

    def __enter__(self) -> Instance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete(force=True)

    def start(self) -> None:
        """Raises ConflictError when it runs already."""
        from ctrmgr.backend import local

        local.start(self.name)

    def stop(self, *, timeout: float | None = None, force: bool = False) -> None:
        """Ask init to end, kill what is left after `timeout` seconds, or at once with `force`."""
        from ctrmgr.backend import local

        local.stop(self.name, timeout=timeout, force=force)

    def restart(self, *, timeout: float | None = None, force: bool = False) -> None:
        """Stop, if it runs, and start."""
        from ctrmgr.backend import local

        local.restart(self.name, timeout=timeout, force=force)

    def delete(self, *, force: bool = False) -> None:
        """Remove it and all that it has; with `force` also while it runs."""
        from ctrmgr.backend import local

        local.delete(self.name, force=force)

    def rename(self, name: str) -> None:
        """Rename it while it is stopped; the handle follows."""
        from ctrmgr.backend import local

        local.rename(self.name, name)
        self.name = name

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        from ctrmgr.backend import local

        local.freeze(self.name)

    def unfreeze(self) -> None:
        """Let them go on."""
        from ctrmgr.backend import local

        local.freeze(self.name, thaw=True)

    def configure(self, config: Mapping[str, str | None]) -> bool:
        """Set its own keys (LXD's; None takes one away, so that its profiles' counts again).

        True: it is running, and not all of it is live: the rest comes with its next start. Raises SpecError, HostError; then
        nothing has changed.
        """
        from ctrmgr.backend import configure
        from ctrmgr.spec import keys

        given = {key: value for key, value in config.items() if value is not None}
        for key, value in given.items():
            keys.check(key, value)
        with configure.opened(self.name) as own:
            own.config = {key: value for key, value in own.config.items() if key not in config} | given
            return configure.apply(own)

    def attach(self, device: str, *, volatile: bool = False, wait: float = 0, **keys: str) -> bool:
        """Give it a device (`type="unix-char", source="/dev/fuse", …`, LXD's keys).

        True: it is there now. False: the instance is stopped; it comes with the next start. `wait`: at most so many seconds, until it
        opens inside; raises HostError when it does not, and then nothing has changed.
        """
        if wait:
            from ctrmgr.backend import waiting

            waiting.attach(self.name, device, keys, wait, volatile=volatile)
            return True
        from ctrmgr.backend import attach

        return attach.attach(self.name, device, keys, volatile=volatile)

    def detach(self, device: str, *, holders: str = "report", volatile: bool = False) -> Detached:
        """Take a device away; the result names the processes that still have it open or mapped."""
        from ctrmgr.backend import detach

        return detach.detach(self.name, device, holders=holders, volatile=volatile)

    def suspend(self, device: str, *, holders: str = "report") -> Detached:
        """Take a device away for now; the result names the processes that still have it open or mapped."""
        from ctrmgr.backend import suspend

        return suspend.suspend(self.name, device, holders=holders)

    def resume(self, device: str) -> None:
        """Give a suspended device back."""
        from ctrmgr.backend import suspend

        suspend.resume(self.name, device)

    def exec(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        group: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command in it and wait for its end. Raises ConflictError when it is not running."""
        import subprocess

        from ctrmgr.backend import enter

        words = enter.words(self.name, command, user=user, group=group, cwd=cwd, env=env or {}, tty=False)
        done = subprocess.run(words, input=stdin, capture_output=True, env=enter.environment(), check=False)
        return ExecResult(done.returncode, done.stdout, done.stderr)

    def read(self, path: str) -> bytes:
        """The bytes of a file in it, whether it runs or not. Raises NotFoundError."""
        from ctrmgr.backend import within

        found = within.pull(self.name, path, recursive=False, say=lambda text: None)
        return b"".join(block for each in found for block in each.data)

    def write(self, path: str, data: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Make a file in it, or replace it; the owner's numbers are those inside."""
        from ctrmgr import entries
        from ctrmgr.backend import within

        entry = entries.Entry("", entries.FILE, mode=mode, uid=uid, gid=gid, size=len(data), data=[data])
        within.push(self.name, path, [entry], parents=False)

    def snapshot(self, name: str = "") -> str:
        """Keep how it is now; returns the snapshot's name."""
        from ctrmgr.backend import snapshots

        return snapshots.create(self.name, name)

    def restore(self, snapshot: str) -> None:
        """Put its files, keys and devices back while it is stopped."""
        from ctrmgr.backend import snapshots

        snapshots.restore(self.name, snapshot)

    def partitions(self) -> list[Partition]:
        """The parts of devices that it has alone."""
        from ctrmgr.backend import partition_list

        return partition_list.of_instance(self.name)

    def info(self) -> Info:
        """What it is and what it uses."""
        from ctrmgr.backend import info

        return info.read(self.name)

    def usage(self, seconds: float = 0.5) -> Use:
        """What it uses in the next `seconds`, against what it may. Raises ConflictError when it is not running."""
        from ctrmgr.backend import observe

        return observe.one(self.name, seconds)

    def events(self, *types: str) -> Events:
        """What happens to it from now on: `lifecycle`, `device`, `limit`; without types all of them."""
        from ctrmgr.backend import observe

        return observe.Events([self.name], types or ("lifecycle", "device", "limit"))


def launch(
    image: str,
    name: str = "",
    *,
    profiles: Sequence[str] = ("default",),
    config: Mapping[str, str] | None = None,
    devices: Mapping[str, Mapping[str, str]] | None = None,
    ephemeral: bool = False,
    ignore_unsupported: bool = False,
) -> Instance:
    """Make an instance and start it. Without a name it gets one. Keys and devices are LXD's."""
    from ctrmgr.backend import create, local

    wish = create.Wish(
        image,
        name,
        profiles=profiles,
        config=config,
        devices=devices,
        ephemeral=ephemeral,
        ignore_unsupported=ignore_unsupported,
    )
    return Instance(local.launch(wish))


def create(
    image: str,
    name: str = "",
    *,
    profiles: Sequence[str] = ("default",),
    config: Mapping[str, str] | None = None,
    devices: Mapping[str, Mapping[str, str]] | None = None,
    ephemeral: bool = False,
    ignore_unsupported: bool = False,
) -> Instance:
    """Make an instance and leave it stopped."""
    from ctrmgr.backend import create as making

    wish = making.Wish(
        image,
        name,
        profiles=profiles,
        config=config,
        devices=devices,
        ephemeral=ephemeral,
        ignore_unsupported=ignore_unsupported,
    )
    return Instance(making.create(wish))


def connect(remote: str) -> Remote:
    """A registered LXD or Incus server, with the same verbs. Raises NotFoundError; nothing is sent before the first verb."""
    from ctrmgr.remote import handle

    return handle.Remote(remote)


def instances() -> list[Instance]:
    """All instances on this machine, by name."""
    from ctrmgr.backend import record

    return [Instance(name) for name in record.names()]


def doctor(*names: str, fix: bool = False) -> list[Finding]:
    """What is well, lacking and wrong on this host and with all instances, or with the named ones alone; `fix` mends what can be.

    Each finding has `status` (`ok`, `note`, `wrong` or `mended`), `subject`, `check`, `text` and `hint`. Raises NotFoundError.
    """
    from ctrmgr.backend import doctor as backend

    return backend.mend(names) if fix else backend.examine(names)


def find_devices(function: str, **keys: str) -> list[Candidate]:
    """Devices that can do something (`"gpu.compute", min_memory="16GiB"`), the one that an instance would be given first in front.

    Raises NotFoundError, which says why the others do not fit, ConflictError when all that fit are taken, SpecError.
    """
    from ctrmgr.backend import functions

    return functions.find(function, {key.replace("_", "-"): value for key, value in keys.items()})


def host_devices(*kinds: str) -> list[Device]:
    """What this machine has that an instance can be given: all of it, or only some kinds (`"gpu", "infiniband"`, a plugin's type, …).

    Each has an `id` that stays when nodes are renumbered, its `nodes`, and the instances that hold it. A plugin that
    could not be asked is a RuntimeWarning. Raises SpecError for an unknown kind.
    """
    import warnings

    from ctrmgr.backend import catalog

    found, wrong = catalog.everything(kinds)
    for error in wrong:
        warnings.warn(error.message, RuntimeWarning, stacklevel=2)
    return found


def partitions() -> list[Partition]:
    """All partitions of this machine's devices: those with names, those of instances, and what others have made where the hardware tells.

    Each has `name`, `used_by`, `type`, `device`, `part`, `takes` (pool → amount), `nodes` and `state`. What could not be asked is a
    RuntimeWarning.
    """
    import warnings

    from ctrmgr.backend import partition_list

    found, wrong = partition_list.everywhere()
    for error in wrong:
        warnings.warn(error.message, RuntimeWarning, stacklevel=2)
    return found


def create_partition(name: str, device: str, *, type: str = "", **amounts: int | str) -> Partition:
    """Make a partition of a device that lasts until it is deleted: `create_partition("half", "0000:17:00.0", memory="40GiB",
    copy_engines=2)`, or `profile="1g.10gb"`. Devices of instances name it (`partition="half"`).

    Raises SpecError, NotFoundError, ConflictError with what is left and who has the rest, HostError.
    """
    from ctrmgr.backend import partition_list

    words = ",".join(f"{pool.replace('_', '-')}={amount}" for pool, amount in amounts.items())
    return partition_list.create(name, device, words, type)


def delete_partition(name: str) -> None:
    """End a partition that has a name. Raises NotFoundError, ConflictError when an instance has it."""
    from ctrmgr.backend import named_partitions

    named_partitions.delete(name)


def top(*names: str, interval: float = 1.0) -> Iterator[list[Use]]:
    """What all running instances, or those named that run, use: a list every `interval` seconds, by name, without an end.

    Raises NotFoundError, SpecError.
    """
    from ctrmgr.backend import observe

    return observe.samples(names, interval)


def events(*names: str, types: Sequence[str] = ()) -> Events:
    """What happens to all instances, or those named, from now on, and (type `host`) to the machine's devices.

        with ctrmgr.events(types=["limit"]) as watched:
            for event in watched:
                print(event.instance, event.event, event.details)

    Each has `when`, `type`, `event`, `instance` and `details`. Raises SpecError.
    """
    from ctrmgr.backend import observe

    return observe.Events(names, types)
