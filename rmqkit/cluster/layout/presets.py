"""Presets: named combinations of options, for `cluster up --preset NAME`.

A preset sets fields of the `Description`, `[settings]` among them. Other options of the command
take precedence. The name of a preset is not stored; its values are, in `cluster.toml` and in each
`node.toml`.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import Setting
from rmqkit.suggestions import suggest

#: fields of a `Description` by the name of a preset
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # A slave acts within 3 s after its master goes silent, instead of 16 s.
    "fast-failover": {
        "settings": {
            "scanNotActiveBrokerInterval": 500,
            "brokerHeartbeatInterval": 300,
            "brokerNotActiveTimeoutMillis": 2000,
            "syncBrokerMemberGroupPeriod": 300,
        }
    },
    # Three controllers elect the master of a group of three, and no acknowledged message is lost by
    # an election.
    "controller": {"replicas": 3, "controllers": 3},
    # TLS on every port, with certificates of its own, and users. Needs rmqkit[secure].
    "secure": {"secure": True},
    # Three groups of three in three processes, each with one master and a slave of each other.
    "crosswise": {"groups": 3, "replicas": 3, "layout": "crosswise"},
}


def with_preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `given` fields of a `Description`, with those of a preset as defaults.

    A given field that is None counts as not given. `name` may list several presets, separated by
    commas; later ones take precedence. Raises UsageProblem if a name is unknown.
    """
    if name is None:
        return dict(given)
    asked = {key: value for key, value in given.items() if value is not None}
    shape: dict[str, Any] = {}
    settings: dict[str, Setting] = {}
    for preset in map(_preset, name.split(",")):
        shape.update(preset)
        settings.update(preset.get("settings", {}))
    return {**given, **shape, **asked, "settings": {**settings, **asked.get("settings", {})}}


def _preset(name: str) -> Mapping[str, Any]:
    preset = PRESETS.get(name.strip())
    if preset is None:
        raise UsageProblem(f"there is no preset {name!r}{suggest(name, PRESETS, 'there are {known}')}")
    return preset
