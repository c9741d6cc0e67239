# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr cdi …`: the specs of the Container Device Interface that this machine has."""

from __future__ import annotations

import sys

from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctrmgr.cdi.model import CdiSpec
    from ctrmgr.cdi.registry import Registry
    from ctrmgr.cli.command import Args
    from ctrmgr.edits import ContainerEdits, DeviceNode

Row = dict[str, object]
STDIN = "-"


def _registry(args: Args) -> Registry:
    from ctrmgr.cdi.registry import Registry

    return Registry(args.one("root", "/"))


def _warn(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(f"warning: {text}", file=sys.stderr)


def cdi_list(args: Args) -> None:
    """Every device, and those that two files fight for; what cannot be read is told on stderr."""
    from ctrmgr.cli import table

    registry = _registry(args)
    rows: list[Row] = []
    for device in registry.devices.values():
        edits = device.edits
        counts = {"nodes": len(edits.device_nodes), "mounts": len(edits.mounts), "hooks": len(edits.hooks)}
        rows.append({"name": device.name, "state": "usable", **counts, "file": device.file.path})
    for name, files in registry.conflicts.items():
        rows.append({"name": name, "state": "conflict", "nodes": "", "mounts": "", "hooks": "", "file": list(files)})
    rows.sort(key=lambda row: str(row["name"]))
    for error in registry.errors.values():
        _warn(args, error.message)
    table.print_rows(("name", "state", "nodes", "mounts", "hooks", "file"), rows, args.one("format", "table"))


def cdi_show(args: Args) -> None:
    """What asking for these devices together does."""
    from ctrmgr.cdi import write
    from ctrmgr.cli import table

    edits = _registry(args).edits(args.positional)
    form = args.one("format", "table")
    if form in ("json", "yaml"):
        table.print_object({"devices": args.positional, "containerEdits": write.data(edits)}, form)
    else:
        table.print_rows(("edit", "what", "detail"), list(_rows(edits)), form)


def _rows(edits: ContainerEdits) -> Iterator[Row]:
    def row(edit: str, what: object, *details: object) -> Row:
        return {"edit": edit, "what": what, "detail": " ".join(str(detail) for detail in details if detail != "")}

    for assignment in edits.env:
        name, _, value = assignment.partition("=")
        yield row("env", name, value)
    for node in edits.device_nodes:
        yield row("node", node.path, *_of_node(node))
    for device in edits.net_devices:
        yield row("interface", device.host_interface_name, f"as {device.name}")
    for mount in edits.mounts:
        yield row("mount", mount.container_path, f"from {mount.host_path}", mount.type, ",".join(mount.options))
    for hook in edits.hooks:
        limit = "" if hook.timeout is None else f"(at most {hook.timeout} s)"
        yield row("hook", hook.hook_name, *hook.env, hook.path, *hook.args[1:], limit)
    if edits.intel_rdt:
        from ctrmgr.cdi import write

        for name, setting in write.data(edits)["intelRdt"].items():
            yield row("rdt", name, ", ".join(setting) if isinstance(setting, list) else setting)
    for gid in edits.additional_gids:
        yield row("group", gid)


def _of_node(node: DeviceNode) -> Iterator[str]:
    yield f"from {node.host_path}" if node.host_path else ""
    yield f"{node.type or 'c'} {node.major}:{node.minor}" if node.major or node.minor else node.type
    yield node.access or "(no access)"
    yield "" if node.file_mode is None else f"mode {node.file_mode:04o}"
    yield "" if node.uid is None else f"uid {node.uid}"
    yield "" if node.gid is None else f"gid {node.gid}"


def _load(path: str) -> CdiSpec:
    """A spec from a file or from standard input."""
    from ctrmgr.cdi import model

    if path != STDIN:
        return model.load(path)
    text = sys.stdin.read(model.SIZE_MAX + 1)
    return model.parse("standard input.json" if text.lstrip().startswith("{") else "standard input", text)


def cdi_validate(args: Args) -> int:
    """Files, or all that the directories hold, where a device that two of them define is an error as well."""
    from ctrmgr.cli import table

    rows: list[Row] = []
    wrong: list[CtrmgrError] = []

    def valid(path: str, spec: CdiSpec) -> Row:
        names = [device.name for device in spec.devices]
        return {"file": path, "kind": spec.kind, "version": spec.cdi_version, "devices": names, "problem": ""}

    def invalid(path: str, error: CtrmgrError) -> Row:
        wrong.append(error)
        return {"file": path, "kind": "", "version": "", "devices": [], "problem": error.message}

    for path in args.positional:
        try:
            rows.append(valid(path, _load(path)))
        except SpecError as error:
            rows.append(invalid(path, error))
    if not args.positional:
        registry = _registry(args)
        rows += [valid(file.path, file.spec) for file in registry.files]
        rows += [invalid(path, problem) for path, problem in registry.errors.items()]
        for name in registry.conflicts:
            try:
                registry.find(name)
            except ConflictError as conflict:
                wrong.append(conflict)
    rows.sort(key=lambda row: str(row["file"]))
    for one in wrong:
        print(f"error: {one.message}{f' (hint: {one.hint})' if one.hint else ''}", file=sys.stderr)
    table.print_rows(("file", "kind", "version", "devices", "problem"), rows, args.one("format", "table"))
    return min((one.exit_code for one in wrong), default=0)


def cdi_transform(args: Args) -> None:
    """A spec with another root, or without repetition, or both."""
    from ctrmgr import state
    from ctrmgr.cdi import transform, write
    from ctrmgr.cli import table

    path, old, new = args.positional[0], args.one("from"), args.one("to")
    if bool(old) != bool(new):
        raise SpecError("`--from` and `--to` belong together")
    if not old and not args.flag("simplify"):
        raise SpecError("there is nothing to do", hint="--from and --to, or --simplify")
    spec = _load(path)
    if old:
        spec = transform.root(spec, old, new, args.one("relative-to", "host"))
    if args.flag("simplify"):
        spec = transform.simplify(spec)
    output = args.one("output")
    form = args.one("format") or ("json" if (output or path).endswith(".json") else "yaml")
    if form in ("table", "csv"):
        if output:
            raise SpecError(f"`--output` writes a spec, and `{form}` is none", hint="--format yaml or json")
        parts = [("", spec.container_edits), *((device.name, device.container_edits) for device in spec.devices)]
        rows = [{"device": name, **row} for name, edits in parts for row in _rows(edits.value())]
        table.print_rows(("device", "edit", "what", "detail"), rows, form)
    elif output and not args.flag("dry-run"):
        state.write_output(output, write.text(spec, form).encode(), write.MODE)
    else:
        print(write.text(spec, form), end="")


def _of_instance(args: Args, instance: str) -> dict[str, ContainerEdits]:
    """The devices of a running instance; what a spec cannot say of them is told on stderr."""
    from ctrmgr.backend import mirrored

    found = mirrored.devices(instance, args.positional)
    for each in found:
        for reason in each.left_out:
            _warn(args, f"left out of {each.name}: {reason}")
    devices = {each.name: each.edits for each in found if each.edits}
    if not devices:
        raise NotFoundError(f"`{instance}` has no device that a spec could describe")
    return devices


def _of_machine(args: Args) -> dict[str, ContainerEdits]:
    """What cannot be given is told on stderr, or is an error if it was named."""
    from ctrmgr.backend import passable

    found = passable.described(args.positional, args.one("root", "/"))
    for each in found:
        if each.reason and args.positional:
            raise HostError(each.reason)
        if each.reason:
            _warn(args, f"left out: {each.device.id}: {each.reason}")
    devices = {each.name: each.edits for each in found if not each.reason}
    if not devices:
        raise NotFoundError(
            "this machine has no GPU, accelerator or RDMA device that can be given",
            hint="name a device of `device list`",
        )
    return devices


def cdi_generate(args: Args) -> None:
    """One spec of all that was found."""
    from ctrmgr import state
    from ctrmgr.cdi import names, write
    from ctrmgr.cli import table

    instance = args.one("instance")
    kind = args.one("kind", f"{VENDOR}/{instance}" if instance else KIND)
    try:
        names.check_kind(kind)
    except ValueError as error:
        raise SpecError(f"`--kind`: {error}") from None
    if instance and args.one("root"):
        raise SpecError("`--instance` is of this machine: `--root` has no place beside it")
    devices = _of_instance(args, instance) if instance else _of_machine(args)
    spec = write.build(kind, devices)
    output = args.one("output")
    form = args.one("format") or ("json" if output.endswith(".json") else "yaml")
    if form in ("table", "csv"):
        rows = [{"device": name, **row} for name, edits in devices.items() for row in _rows(edits)]
        table.print_rows(("device", "edit", "what", "detail"), rows, form)
    elif output and not args.flag("dry-run"):
        state.write_output(output, write.text(spec, form).encode(), write.MODE)
    else:
        print(write.text(spec, form), end="")


VENDOR = "ctrmgr.local"
KIND = f"{VENDOR}/device"
ROOT = Option("root", "read below this directory, where another system is", metavar="DIR")
COMMANDS = (
    Command("cdi list", "devices of the CDI specs, and the file of each", cdi_list, options=(ROOT,)),
    Command(
        "cdi show",
        "what CDI devices do to a container",
        cdi_show,
        arguments=(
            Argument("NAME", "vendor/class=device; several are asked for together", repeat=True, complete="cdi"),
        ),
        options=(ROOT,),
    ),
    Command(
        "cdi generate",
        "print a CDI spec of this machine's GPUs, accelerators and RDMA devices, or of those that are named",
        cdi_generate,
        arguments=(Argument("DEVICE", "as `ctrmgr device list` names it, of any kind", required=False, repeat=True),),
        options=(
            Option("instance", "what a running instance has, by its own names for it", metavar="INSTANCE"),
            Option("kind", f"vendor/class of the devices ({KIND}, or {VENDOR}/INSTANCE)", metavar="KIND"),
            Option("output", "write it there instead of printing it", metavar="FILE", short="o"),
            ROOT,
        ),
    ),
    Command(
        "cdi validate",
        "check CDI specs",
        cdi_validate,
        arguments=(
            Argument(
                "FILE",
                "JSON or YAML, `-` is standard input; all of the machine when none",
                required=False,
                repeat=True,
                complete="file",
            ),
        ),
        options=(ROOT,),
    ),
    Command(
        "cdi transform",
        "print a CDI spec with another root, or without repetition",
        cdi_transform,
        arguments=(Argument("FILE", "JSON or YAML; `-` is standard input", complete="file"),),
        options=(
            Option("from", "the root that paths have now", metavar="DIR"),
            Option("to", "the root that they get", metavar="DIR"),
            Option("relative-to", "whose paths", metavar="SIDE", choices=("host", "container")),
            Option("simplify", "say once what all devices do"),
            Option("output", "write it there instead of printing it", metavar="FILE", short="o"),
        ),
    ),
)
