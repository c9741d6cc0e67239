# SPDX-License-Identifier: GPL-3.0-or-later
"""The smallest plugin: the kernel's random number generator as an accelerator that several instances may have.

install -m 644 demo-noise.py /etc/ctrmgr/devices.d/
ctrmgr attach-device c1 noise type=any function=random.bytes path=/dev/noise
"""

from __future__ import annotations

from ctrmgr.devices.plugin import Found, Host
from ctrmgr.devices.plugin import Plugin as Base


class Plugin(Base):
    type = "demo-noise"
    description = "random numbers, as an example"

    def identify(self, host: Host) -> list[Found]:
        model = host.text("/sys/class/misc/hw_random/rng_current") or "kernel"
        return [
            Found(
                "urandom",
                model=model,
                vendor="Linux",
                nodes=["/dev/urandom"],
                functions={"random.bytes": {"seeded": "yes"}},
                shared=2,
                identity=[("/sys/class/mem/urandom/dev", host.text("/sys/class/mem/urandom/dev"))],
            )
        ]
