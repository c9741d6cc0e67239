# SPDX-License-Identifier: GPL-3.0-or-later
"""`profile …` and `config …`: what is written, and that nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrmgr import state
from ctrmgr.backend import detach
from ctrmgr.cli import config, profile
from ctrmgr.cli.command import Command, parse
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from ctrmgr.host import subid
from ctrmgr.plan import compile, instance
from tests.conftest import Ctr

COMMANDS: dict[str, Command] = {command.name: command for command in (*config.COMMANDS, *profile.COMMANDS)}
FINGERPRINT = "ab" * 32


def run(name: str, *words: str) -> None:
    COMMANDS[name].run(parse(COMMANDS[name], list(words)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "RUN", "CONFIG"):
        monkeypatch.setenv(f"CTRMGR_{name}_DIR", str(tmp_path / name))
    libexec = tmp_path / "libexec"
    libexec.mkdir()
    (libexec / "ctrmgr-seccomp").write_text("#!/bin/sh\ncat >/dev/null; head -c 8 /dev/zero\n")
    (libexec / "ctrmgr-seccomp").chmod(0o755)
    (libexec / "default.policy").write_text("default allow\narch compat\n")
    monkeypatch.setenv("CTRMGR_LIBEXEC", str(libexec))
    monkeypatch.setattr(subid, "mine", lambda: ((100000, 65536 * 3),))
    return tmp_path


@pytest.fixture
def c1(place: Path) -> Path:
    from ctrmgr.images import store

    image = place / "STATE/images" / FINGERPRINT
    (image / "rootfs").mkdir(parents=True)
    state.write_flat(str(image / "metadata"), [["init", "builtin"], ["halt-signal", "15"]])
    folder = place / "STATE/instances/c1"
    folder.mkdir(parents=True)
    rows = compile.compile_template(store.load(FINGERPRINT), ["default"], {}, {})
    claims = instance.claim(instance.needs(rows), "c1")
    state.write_flat(str(folder / "plan"), instance.fill(rows, name="c1", claims=claims))
    state.write_flat(str(folder / "config"), [["image", FINGERPRINT, "x"], ["profile", "default"], ["created", "1"]])
    return folder


def test_set_get_unset(c1: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("config set", "c1", "security.nesting=yes", "user.a=b=c")
    assert ["nesting", "1"] in state.read_flat(f"{c1}/plan")
    assert ["created", "1"] in state.read_flat(f"{c1}/config")
    run("config get", "c1", "user.a")
    assert capsys.readouterr().out == "b=c\n"
    for words, said in (("config get", "yes\n"), ("config show", "  security.nesting: 'yes'\n")):
        run(words, "c1", *(["security.nesting"] if words == "config get" else []))
        assert said in capsys.readouterr().out
    run("config unset", "c1", "security.nesting")
    assert ["nesting", "0"] in state.read_flat(f"{c1}/plan")
    with pytest.raises(NotFoundError, match="not set"):
        run("config unset", "c1", "security.nesting")


def test_a_device_is_shown_as_it_was_written(c1: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("config device add", "c1", "eth1", "unix-char", "source=/dev/null", "mode=660", "required=no")
    plan = state.read_flat(f"{c1}/plan")
    for key, said in (("mode", "660"), ("required", "no")):
        run("config device get", "c1", "eth1", key)
        assert capsys.readouterr().out == f"{said}\n"
    for words in (["config show", "c1"], ["config device show", "c1"]):
        run(words[0], *words[1:])
        assert "mode: '660'" in capsys.readouterr().out
    run("config device set", "c1", "eth1", "mode=0660")
    assert sorted(state.read_flat(f"{c1}/plan")) == sorted(plan)
    run("config device get", "c1", "eth1", "mode")
    assert capsys.readouterr().out == "0660\n"
    with pytest.raises(ConflictError, match="`eth0` of `c1` is not attached: it is a `nic`"):
        detach.detach("c1", "eth0")
    with pytest.raises(SpecError, match="`moed` is not a key"):
        run("config device get", "c1", "eth1", "moed")
    with pytest.raises(SpecError, match="is not a mode"):
        run("config device set", "c1", "eth1", "mode=rw")


@pytest.mark.parametrize(
    "pair", ["limits.memry=1", "limits.memory=1X", "security.privileged=true", "security.idmap.size=100000", "x"]
)
def test_what_is_refused_changes_nothing(c1: Path, pair: str) -> None:
    before = {path.name: path.read_bytes() for path in c1.iterdir()}
    with pytest.raises(Exception, match=r"`"):
        run("config set", "c1", pair)
    assert {path.name: path.read_bytes() for path in c1.iterdir()} == before


def editor(place: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = place / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(path))


def test_edit(c1: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(place, monkeypatch, "printf 'config: {security.nesting: true}\\n' >\"$1\"")
    run("config edit", "c1")
    assert ["config", "security.nesting", "true"] in state.read_flat(f"{c1}/config")


def test_edit_of_broken_yaml_loses_nothing(c1: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(place, monkeypatch, "echo 'config: {precious' >\"$1\"")
    monkeypatch.setattr("sys.stdin", open("/dev/null"))
    before = (c1 / "config").read_bytes()
    with pytest.raises(SpecError, match="not YAML") as caught:
        run("config edit", "c1")
    assert caught.value.hint is not None
    kept = Path(caught.value.hint.split("`")[1])
    assert kept.read_text() == "config: {precious\n"
    kept.unlink()
    assert (c1 / "config").read_bytes() == before


def test_edit_does_not_overwrite_what_others_changed(c1: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(
        place,
        monkeypatch,
        f"sed -i 's/^end$/config\\tuser.b\\tc\\nend/' {c1}/config; echo 'config: {{user.a: b}}' >\"$1\"",
    )
    with pytest.raises(ConflictError, match="another command"):
        run("config edit", "c1")
    assert (c1 / "edit.yaml").read_text() == "config: {user.a: b}\n"
    assert ["config", "user.b", "c"] in state.read_flat(f"{c1}/config")


def test_corrupt_instance_file_is_named(c1: Path) -> None:
    (c1 / "config").write_text("config\tx\nend\n")
    with pytest.raises(Exception, match=r"config` is corrupt: line 1"):
        run("config show", "c1")


def test_profile_create_copy_delete(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("profile create", "mine")
    with pytest.raises(ConflictError):
        run("profile create", "mine")
    run("profile copy", "default", "other")
    run("profile show", "other")
    assert "name: other\n" in capsys.readouterr().out
    run("profile validate", "mine", "other")
    run("profile delete", "mine")
    with pytest.raises(NotFoundError):
        run("profile show", "mine")
    with pytest.raises(ConflictError, match="not yours"):
        run("profile delete", "default")
    run("profile list", "--format", "json")
    assert '"other"' in capsys.readouterr().out


def test_values_are_shown_as_they_were_written(ctr: Ctr) -> None:
    """As LXD shows them; what is done with them is the same however they are written."""
    ctr("profile", "create", "typed", stdin="config:\n  limits.processes: 0100\n  limits.memory: 2GiB\n")
    words = ("-p", "no-network", "-p", "typed", "-c", "limits.memory=1GiB", "-c", "limits.memory.swap=YES")
    ctr("create", "builtin:busybox", "c1", *words)
    assert "  limits.memory: 1GiB\n  limits.memory.swap: 'YES'\n" in ctr("config", "show", "c1").stdout
    assert ctr("config", "get", "c1", "limits.processes").stdout == "0100\n"
    ctr("copy", "c1", "c2")
    shown = ctr("config", "show", "c2").stdout
    assert "limits.memory: 1GiB\n" in shown
    assert ctr("config", "edit", "c2", stdin=shown).stderr == "nothing was changed\n"
    ctr("config", "edit", "c2", stdin=shown.replace("1GiB", "1024MiB"))
    assert ctr("config", "get", "c2", "limits.memory").stdout == "1024MiB\n"
    files = [
        [row for row in state.read_flat(f"{ctr.folder}/state/instances/{name}/plan") if row[0] == "cgroup-file"]
        for name in ("c1", "c2")
    ]
    assert files[0] == files[1]
    assert "1073741824" in {row[3] for row in files[0]}
    assert "100" in {row[3] for row in files[0]}


def test_made_of_a_pipe(ctr: Ctr) -> None:
    """As `lxc profile create NAME < FILE`, and with the name that it is given here."""
    text = "name: fuse\nconfig: {user.a: b}\n"
    for name, words in (("one", ()), ("two", ("-",))):
        ctr("profile", "create", name, *words, stdin=text)
        assert ctr("profile", "show", name).stdout == text.replace("fuse", name)
    for wrong, said in (("config: {nosuch: c}\n", "`standard input`, line 1"), (b"\xff", "`standard input` is not")):
        assert said in ctr("profile", "create", "mine", stdin=wrong, code=2).stderr
    ctr("profile", "create", "mine", stdin="\n")
    assert "config: {}" in ctr("profile", "show", "mine").stdout


def test_all_that_is_wrong_with_a_profile(ctr: Ctr) -> None:
    """A line and a hint for each mistake, of all files; what the launch would refuse is said before it does."""
    wrong = ctr.folder / "wrong.yaml"
    wrong.write_text("config:\n  limits.memry: 1GiB\ndevices:\n  a: {type: unix-chr}\n")
    refused = ctr.folder / "refused.yaml"
    refused.write_text("config:\n  security.privileged: true\n  migration.stateful: true\n")
    expected = f"""\
error: `{wrong}`, line 2: `config: limits.memry` is not a key
error: `{wrong}`, line 4: `devices: a: type` `unix-chr` is not a type of device

hint: `{wrong}`, line 2: did you mean `limits.memory`?
hint: `{wrong}`, line 4: did you mean `unix-char`?
"""
    said = ctr("profile", "validate", str(wrong), str(refused), code=2).stderr
    assert said.endswith(expected)
    assert f"`{refused}` is valid\n`{refused}`: `security.privileged` is refused at launch: a priv" in said
    assert ctr("profile", "create", "wrong", str(wrong), code=2).stderr == expected
    assert ctr("profile", "edit", "fuse", stdin=wrong.read_text(), code=2).stderr == expected.replace(
        str(wrong), "standard input"
    )
    for file in (wrong, refused):
        (ctr.folder / "etc/profiles").mkdir(parents=True, exist_ok=True)
        file.rename(ctr.folder / "etc/profiles" / file.name)
    assert ctr("launch", "builtin:busybox", "x", "-p", "wrong", code=2).stderr.count("error: ") == 2
    said = ctr("launch", "builtin:busybox", "x", "-p", "refused", code=5).stderr
    assert said.count("cannot be done") == 2
    assert said.endswith("goes on without them\n")


def test_edited_by_a_pipe(ctr: Ctr) -> None:
    """As `lxc profile edit NAME < FILE`: no editor is asked, and what is wrong changes nothing."""
    ctr("profile", "create", "mine")
    ctr("profile", "edit", "mine", stdin="config: {user.a: b}\n", env={"EDITOR": "false", "VISUAL": ""})
    said = ctr("profile", "edit", "mine", stdin="config: {user.a: b, nosuch: c}\n", code=2).stderr
    assert "`standard input`, line 1" in said
    assert ctr("profile", "show", "mine").stdout == "config: {user.a: b}\n"
    assert (
        "editor `false` failed" in ctr("profile", "edit", "mine", env={"EDITOR": "false", "VISUAL": ""}, code=1).stderr
    )


def test_options_before_the_command(ctr: Ctr) -> None:
    assert ctr("--format", "json", "list").stdout == ctr("-fjson", "list", "-q").stdout == "[]\n"
    assert ctr("--help", "list").stdout == ctr("list", "--help").stdout
    assert "unknown command `-x`" in ctr("-x", code=2).stderr
    assert "unknown option `-x`" in ctr("-x", "list", code=2).stderr
    assert ctr("-f", "json", "info", "nosuch", code=3).stderr.startswith("{")
    assert ctr("exec", "nosuch", "--", "-f", "json", code=3).stderr.startswith("error: ")
    # what stands behind `--` is no option, and is not passed over
    assert "no instance `nosuch`" in ctr("delete", "--force", "--", "nosuch", code=3).stderr
    assert "no instance `a`" in ctr("info", "--", "a", code=3).stderr
    assert "`-x` cannot be" in ctr("config", "show", "--", "-x", code=2).stderr
    assert "`storage` is no command by itself\n\nhint: there are: storage list\n" in ctr("storage", code=2).stderr
    assert "did you mean `image list`?" in ctr("image", "lst", code=2).stderr
    assert "did you mean `config device list`?" in ctr("config", "device", "lst", code=2).stderr
    said = ctr("config", "device", code=2).stderr
    assert "`config device` is no command by itself" in said and "config set" not in said


def test_short_options_are_lxds(ctr: Ctr) -> None:
    for verb in ("delete", "stop", "restart"):
        words = ctr(verb, "--help").stdout
        assert "  -f, --force" in words and "      --format" in words
        assert "no instance `json`" in ctr(verb, "-f", "json", code=3).stderr
    assert "(report, refuse, freeze, kill)" in ctr("detach-device", "--help").stdout


def test_streams_that_are_closed_or_full(ctr: Ctr) -> None:
    def shell(redirected: str, *words: str) -> tuple[int, str]:
        line = ["sh", "-c", f'"$@" {redirected}', "sh", *ctr.argv, *words]
        env = {key: value for key, value in ctr.env.items() if key != "PYTHONUNBUFFERED"}
        done = subprocess.run(line, env=env, capture_output=True, text=True)
        return done.returncode, done.stderr

    ctr("create", "builtin:busybox", "c1", "-p", "no-network")
    code, said = shell("<&-", "attach-device", "c1")
    assert (code, said.splitlines()[0]) == (2, "error: which device? Here is no terminal to choose on")
    assert shell("<&- >&- 2>&-", "list") == (0, "")
    assert shell(">/dev/full", "list") == (
        5,
        "error: `standard output`: No space left on device\n\nhint: free some space\n",
    )


def test_words_that_are_no_text(ctr: Ctr) -> None:
    """What is written down is UTF-8, whatever the locale; names of files, and what goes inside, are as they are."""
    ctr("create", "builtin:busybox", "c1", "-p", "no-network", "-c", "user.note=grüße")
    bad = "x\udcff"
    for words in (("config", "set", "c1", f"user.a={bad}"), ("attach-device", "c1", bad, "type=unix-char", "source=/dev/fuse"),
                  ("snapshot", "create", "c1", bad), ("create", "builtin:busybox", "-p", bad), ("list", bad)):  # fmt: skip
        assert "`x\\udcff` " in ctr(*words, code=2).stderr.replace("user.a=", "")
    assert "no file" in ctr("image", "import", str(ctr.folder / bad), code=3).stderr
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert ctr("config", "get", "c1", "user.note", env=plain).stdout == "grüße\n"
    shown = ctr("config", "show", "c1", env=plain).stdout
    assert ctr("config", "edit", "c1", stdin=shown, env=plain).stderr == "nothing was changed\n"
    assert "usage: ctrmgr COMMAND …" in ctr("help", env=plain).stdout
