# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of `attach-device` that are missing or wrong, beyond what a key's own check says."""

from __future__ import annotations

import pytest

from ctrmgr.backend import devices
from ctrmgr.errors import SpecError


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"type": "disk", "source": "/tmp"}, "device `x`: `path` is missing"),
        ({"type": "cdi"}, "device `x`: `id` is missing"),
        ({"type": "unix-char", "source": "/etc/passwd"}, "device `x`: `/etc/passwd` is not below /dev"),
    ],
)
def test_what_is_said(keys: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        devices.check("x", keys)
    assert caught.value.message.startswith(said)
