"""The lists of real drills, and the tables that are made from their results."""

import json

import pytest

from rmqkit.cluster import nodefile
from rmqkit.drill import series, takeovers
from rmqkit.drill.doing import settings_of
from tests.tidy.tree import ROOT


@pytest.mark.parametrize(("name", "count"), [("replicas", 50), ("takeovers", 30)])
def test_no_drill_is_in_a_list_twice_and_all_can_be_done(name, count):
    plans = series.LISTS[name].plans()
    assert len(plans) == len({plan.dumps() for plan in plans}) == count
    for plan in plans:
        nodefile.check_settings(settings_of(plan), plan.replicas)


def test_takeovers_have_a_group_to_go_to_and_a_quorum_that_can_be_met():
    for plan in takeovers.plans():
        assert plan.acting
        assert plan.groups == 2
        assert not plan.strict_locks or plan.replicas == 3
    seen = {(plan.fault, plan.replicas, plan.strict_locks) for plan in takeovers.plans()}
    assert seen >= {(fault, 3, is_strict) for fault in takeovers.FAULTS for is_strict in (True, False)}


@pytest.mark.parametrize("name", list(series.LISTS))
def test_the_page_has_the_table_of_the_results(name):
    """After a change: python -m rmqkit.drill.series --render."""
    each = series.LISTS[name]
    table = each.markdown(json.loads((ROOT / each.results).read_text()))
    assert table.strip() in (ROOT / series.PAGE).read_text()


def test_a_table_is_put_between_its_own_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"a\n{series.BEGIN}\nold\n{series.END}\nb\n{takeovers.BEGIN}\n{takeovers.END}\n")
    series.render(takeovers.markdown([]), page)
    assert page.read_text().startswith(f"a\n{series.BEGIN}\nold\n{series.END}\nb\n{takeovers.BEGIN}\n0 drills")
    assert page.read_text().count(takeovers.END) == 1
