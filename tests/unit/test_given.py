# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of an instance's nodes between two looks."""

from __future__ import annotations

import pytest

from ctrmgr.backend import given

ONE, TWO = ("gpu", "/dev/nvidia0"), ("gpu", "/dev/nvidia1")
TTY, OTHER = ("usb", "/dev/ttyUSB0"), ("usb", "/dev/ttyUSB1")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({TTY: "188:0"}, {TTY: "188:1"}, [("replaced", "/dev/ttyUSB0", "188:1", "188:0", None)]),
        ({TTY: "188:0"}, {}, [("unplugged", "/dev/ttyUSB0", "188:0", None, None)]),
        ({TTY: "188:0"}, {OTHER: "188:1"}, [("unplugged", "/dev/ttyUSB0", "188:0", None, None),
                                            ("plugged", "/dev/ttyUSB1", "188:1", None, None)]),
        ({ONE: "195:0"}, {TWO: "195:1"}, [("replaced", "/dev/nvidia1", "195:1", "195:0", "/dev/nvidia0")]),
        ({ONE: "195:0"}, {("new", "/dev/nvidia1"): "195:1"}, [("unplugged", "/dev/nvidia0", "195:0", None, None)]),
        ({ONE: "195:0", TWO: "195:1"}, {ONE: "195:0", ("gpu", "/dev/nvidia2"): "195:2"},
         [("replaced", "/dev/nvidia2", "195:2", "195:1", "/dev/nvidia1")]),
        ({ONE: "195:0"}, {("gpu", "/dev/nvidiactl"): "195:255"}, [("unplugged", "/dev/nvidia0", "195:0", None, None),
                                                                  ("plugged", "/dev/nvidiactl", "195:255", None, None)]),
    ],
)  # fmt: skip
def test_what_is_told(old: given.Nodes, new: given.Nodes, told: list[tuple[str, ...]]) -> None:
    """What has its own name is told with the name of what it replaces; a device that is new is told as a whole."""
    found = [
        (event, *(details.get(key) for key in ("path", "number", "was", "was_path")))
        for event, details in given.moved(old, new, {"gpu", "usb"})
    ]
    assert found == told
