"""Presets: names for settings that belong together."""

import pytest

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import Description
from rmqkit.cluster.layout.nodefile import check_settings
from rmqkit.cluster.layout.presets import PRESETS, with_preset


def test_without_a_preset_nothing_changes():
    assert with_preset(None, {"groups": 2, "settings": None}) == {"groups": 2, "settings": None}


def test_explicit_options_win_over_the_preset():
    given = with_preset("fast-failover", {"groups": 2, "replicas": None, "settings": {"brokerHeartbeatInterval": "200"}})
    assert (given["groups"], given["replicas"]) == (2, None)
    assert given["settings"] == {**PRESETS["fast-failover"]["settings"], "brokerHeartbeatInterval": "200"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_cluster(name):
    made = Description().changed(**with_preset(name, {"settings": None}))
    check_settings(made.settings, made.replicas)


def test_several_are_joined_by_commas():
    given = with_preset("crosswise, fast-failover", {"groups": 4, "settings": None})
    assert (given["groups"], given["replicas"], given["layout"]) == (4, 3, "crosswise")
    assert given["settings"] == PRESETS["fast-failover"]["settings"]


def test_a_name_that_is_none():
    with pytest.raises(UsageProblem, match="there is no preset 'fast-failove'; did you mean fast-failover"):
        with_preset("fast-failove", {})
    with pytest.raises(UsageProblem, match="there are fast-failover"):
        with_preset("x", {})
