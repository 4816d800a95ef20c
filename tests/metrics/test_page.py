"""docs/metrics.md is made from the tables; every setting and metric it names exists."""

import re

from rmqkit.settings.keys import ROWS
from rmqkit.testing.metrics_page import SWITCHES, page
from tests.tidy.tree import ROOT


def test_the_page_is_what_the_tables_say():
    assert (ROOT / "docs" / "metrics.md").read_text() == page()


def test_the_switches_are_settings():
    assert set(SWITCHES.values()) <= set(ROWS["broker"])


def test_every_setting_it_names_exists():
    named = set(re.findall(r"`((?:metrics|http|enable|rpc)[A-Za-z]+)", page()))
    assert len(named) > 8
    assert {name for name in named if name not in ROWS["broker"]} == set()
