# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin's device type beside those of `devices`: its keys, and the rows that ask for one."""

from __future__ import annotations

from functools import cache

from ctrmgr.devices import driver, fields, request
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ctrmgr.devices import lxd
    from ctrmgr.plugins.registry import Source


class PluginDriver:
    """What a module of `devices` is for ctrmgr's own types."""

    live = True

    def __init__(self, source: Source) -> None:
        self.__doc__, persistent, own = call.describe(source)
        self.kind, self.life = source.type, "instance" if persistent else "run"
        for name, field in own.items():
            if name in request.FIELDS or name == "type":
                raise call.PluginError(
                    f"plugin `{source.type}`: `FIELDS[{name}]` is a key that all devices have", hint=source.origin
                )
            field.parse = _parser(source, name)
        self.FIELDS = {**request.FIELDS, **own}
        self.file = source.path

    def rows(self, name: str, values: Mapping[str, str]) -> list[list[str]]:
        """The `request` rows, with the keys that have a default. Raises ValueError."""
        fields.one_owner(values)
        given = {
            key: field.default for key, field in self.FIELDS.items() if field.default and key not in request.FIELDS
        }
        return request.rows(name, self.kind, self.life, {**given, **values})

    def lxd_ways(self) -> lxd.Ways:
        """No server has plugins of ours."""
        from ctrmgr.devices import lxd

        return dict.fromkeys(self.FIELDS, lxd.refused(f"no server has the type `{self.kind}`"))

    def lxd_device(self, name: str, values: Mapping[str, str], there: lxd.There) -> lxd.Made:  # noqa: ARG002
        from ctrmgr.devices import lxd

        return lxd.refuse(name, f"no server has the type `{self.kind}`")


def _parser(source: Source, name: str) -> Callable[[str], str]:
    """One key is parsed where the plugin is."""

    @cache
    def parse(value: str) -> str:
        good, wrong = call.check(source, {name: value})
        if wrong:
            raise ValueError(wrong[name])
        return good[name]

    return parse


def adopt(kind: str) -> bool:
    """Let a device type of a plugin be known to `devices.driver`. False when no plugin brings it.

    Raises whatever makes the plugin unusable.
    """
    if kind in driver.PLUGINS:
        return True
    if not registry.known(kind):
        return False
    driver.PLUGINS[kind] = PluginDriver(registry.find(kind))
    return True


def types() -> list[str]:
    """The device types that plugins bring."""
    return list(registry.sources())
