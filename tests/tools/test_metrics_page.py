"""Every setting that docs/metrics.md names exists."""

import re

from rmqkit.settings.keys import rows
from tools.pages.metrics import SWITCHES, page


def test_the_switches_are_settings():
    assert set(SWITCHES.values()) <= set(rows("broker"))


def test_every_setting_it_names_exists():
    named = set(re.findall(r"`((?:metrics|http|enable|rpc)[A-Za-z]+)", page()))
    assert len(named) > 8
    assert {name for name in named if name not in rows("broker")} == set()
