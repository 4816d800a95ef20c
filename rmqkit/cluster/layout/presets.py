"""Presets: names for choices that belong together, for `cluster up --preset NAME`.

A preset gives fields of the `Description` (`shape`) and `[settings]`. What is asked for beside it wins. Nothing of a preset
is remembered but what it chose: that stands in `cluster.toml`, and in each `node.toml`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import Setting
from rmqkit.suggestions import suggest


class Preset(NamedTuple):
    what: str
    settings: Mapping[str, Setting]
    shape: Mapping[str, Any] = {}


PRESETS: Mapping[str, Preset] = {
    "fast-failover": Preset(
        "a slave acts within 3 s of its master's silence, not within 16",
        {
            "scanNotActiveBrokerInterval": 500,
            "brokerHeartbeatInterval": 300,
            "brokerNotActiveTimeoutMillis": 2000,
            "syncBrokerMemberGroupPeriod": 300,
        },
    ),
    "crosswise": Preset(
        "three groups of three in three processes, each with one master and a slave of each other group",
        {},
        {"groups": 3, "replicas": 3, "layout": "crosswise"},
    ),
}


def with_preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Description` as they were asked for (None: not asked), with what the preset chooses put below them.

    Several presets may be joined by commas; later ones win. Raises UsageProblem for a name that is no preset's.
    """
    if name is None:
        return dict(given)
    asked = {key: value for key, value in given.items() if value is not None}
    shape: dict[str, Any] = {}
    settings: dict[str, Setting] = {}
    for preset in map(_preset, name.split(",")):
        shape.update(preset.shape)
        settings.update(preset.settings)
    return {**given, **shape, **asked, "settings": {**settings, **asked.get("settings", {})}}


def _preset(name: str) -> Preset:
    preset = PRESETS.get(name.strip())
    if preset is None:
        raise UsageProblem(f"there is no preset {name!r}{suggest(name, PRESETS, 'there are {known}')}")
    return preset
