# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs for the tests of CDI: small ones to change, and made-up ones by hypothesis."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ctrmgr.cdi import model
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from tests.conftest import ROOT

FIXTURES = sorted(path for path in (ROOT / "tests/fixtures/cdi").iterdir() if path.suffix != ".md")


def spec(kind: str = "vendor.example/class", *names: str, **edits: Any) -> dict[str, Any]:
    """A spec's data: devices with these names, each with the same edits (or a node)."""
    own = edits or {"deviceNodes": [{"path": "/dev/x"}]}
    devices = [{"name": name, "containerEdits": copy.deepcopy(own)} for name in names or ("one",)]
    return {"cdiVersion": "1.1.0", "kind": kind, "devices": devices}


def put(folder: Path, name: str, data: Any) -> Path:
    """A file in a directory that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    path.chmod(0o644)
    return path


# What can stand in a spec

LETTERS = "abzABZ059"
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
WORD = st.builds("{}{}{}".format, st.sampled_from("aZ"), st.text("b-_.", max_size=3), st.sampled_from(LETTERS))
NAME = st.text(LETTERS, min_size=1, max_size=3) | st.sampled_from(("0:1", "a_b.c-d", "all", "1e3", "null", "yes"))
PART = st.sampled_from(("dev", "lib", "a b", "...", "..x", "ü", "#", "-")) | TEXT.map(
    lambda text: f"_{text.replace('/', '')}"
)
PATH = st.lists(PART, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(["x", *parts]))
INTERFACE = st.text("abc019._-", min_size=2, max_size=15).map(lambda text: f"e{text[1:]}")
ASSIGNMENT = st.builds("{}={}".format, WORD, TEXT)
UINT32 = st.integers(0, 2**32 - 1)
NODE = st.builds(
    DeviceNode,
    PATH,
    st.just("") | PATH,
    st.sampled_from(model.NODE_TYPES),
    st.integers(0, model.MAJOR_MAX),
    st.integers(0, model.MINOR_MAX),
    st.none() | st.integers(0, 0o7777),
    st.sampled_from(("", "r", "rw", "rwm", "m", "none")),
    st.none() | UINT32,
    st.none() | UINT32,
)
MOUNT = st.builds(Mount, PATH, PATH, st.lists(TEXT, max_size=3), st.sampled_from(("", "none", "bind", "ext4")))
HOOK = st.builds(
    Hook,
    st.sampled_from(model.HOOKS),
    PATH,
    st.lists(TEXT, max_size=3),
    st.lists(ASSIGNMENT, max_size=2),
    st.none() | st.integers(1, 2**31 - 1),
)
RDT = st.builds(IntelRdt, st.just("/") | WORD, TEXT, TEXT, st.lists(TEXT, max_size=2), st.booleans())
OLD_RDT = st.builds(IntelRdt, WORD, TEXT, TEXT, enable_cmt=st.booleans(), enable_mbm=st.booleans())


def edits(rdt: st.SearchStrategy[IntelRdt] = RDT) -> st.SearchStrategy[ContainerEdits]:
    return st.builds(
        ContainerEdits,
        st.lists(ASSIGNMENT, max_size=3),
        st.lists(NODE, max_size=2),
        st.lists(
            st.builds(NetDevice, INTERFACE, INTERFACE),
            max_size=2,
            unique_by=(lambda device: device.host_interface_name, lambda device: device.name),
        ),
        st.lists(MOUNT, max_size=2),
        st.lists(HOOK, max_size=2),
        st.none() | rdt,
        st.lists(UINT32, max_size=2),
    )


DEVICES = st.dictionaries(NAME, edits().filter(bool), min_size=1, max_size=3)
