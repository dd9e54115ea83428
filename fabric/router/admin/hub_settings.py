"""Settings of the hub, which ADMIN `hub.update` changes and which are kept in the journal."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fabric.records import SaveSetting
from fabric_protocol.errors import Code, ProtocolError

DEFAULTS: Final[dict[str, bool]] = {
    "events": False,  # delivery events are noted
    "advisories": True,  # advisories are sent to subscriptions that match
}


class HubSettings:
    def __init__(self, saved: Iterable[SaveSetting]) -> None:
        known = {name: value for name, value in saved if name in DEFAULTS and type(value) is bool}
        self.values: dict[str, bool] = {**DEFAULTS, **known}

    def change(self, fields: Mapping[str, Any]) -> list[SaveSetting]:
        """Change the named settings, all or none. Returns the rows to write."""
        for name, value in fields.items():
            if name not in DEFAULTS:
                raise ProtocolError(Code.BAD_OPTION, f"hub.update knows {', '.join(DEFAULTS)}, not {name!r}")
            if type(value) is not bool:
                raise ProtocolError(Code.BAD_OPTION, f"{name} is true or false, not {value!r}")
        changed = {name: value for name, value in fields.items() if self.values[name] != value}
        self.values |= changed
        return [SaveSetting(name, value) for name, value in changed.items()]
