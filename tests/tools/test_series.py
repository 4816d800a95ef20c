"""The lists of real drills, and the results of a series."""

import json

import pytest

from rmqkit.cluster.layout import nodefile
from rmqkit.drill.plan import Plan
from rmqkit.drill.real.runner import settings_of
from tools import docs
from tools.drills import series, takeovers
from tools.pages import drills


@pytest.mark.parametrize(("name", "count"), [("replicas", 50), ("takeovers", 30), ("services", 12)])
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


@pytest.fixture
def series_of(tmp_path, monkeypatch, capsys):
    """Return a function that runs a list of two drills with given ends.

    It returns the exit code, the kept results, the printed lines and the page.
    """
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    wanted = [Plan(fault=fault, seed=5, replicas=2) for fault in ("kill", "pause")]
    kept, page = tmp_path / "results.json", tmp_path / "drills.md"
    marks = (
        f"{docs.BEGIN}\nold\n{docs.END}\n".format(name=name, command="make docs")
        for name in ("results", "takeovers", "services", "elections")
    )
    page.write_text("".join(marks))
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    monkeypatch.setattr(drills, "RESULTS", {**drills.RESULTS, "replicas": kept})
    monkeypatch.setattr(series, "LISTS", {"short": series.Series(lambda: wanted, kept, lambda plan: {})})

    def run(*ends, arguments=()):
        left = iter(ends)

        def drill(plan, home):
            judgement, why = next(left)
            return {
                "fault": plan.fault,
                "target": "master",
                "mode": "quorum",
                "seed": 5,
                "judgement": judgement,
                "why": why,
            }

        code = series.main(arguments, drill)
        assert next(left, None) is None, "every drill was done"
        results = json.loads(kept.read_text()) if kept.exists() else None
        return code, results, capsys.readouterr().out.splitlines(), page.read_text()

    return run


VALID, BROKEN, UNCLEAR = ("valid", ""), ("broken", ""), ("inconclusive", "no steady state")


def test_an_inconclusive_drill_is_repeated_once_and_the_series_says_so(series_of):
    code, results, lines, page = series_of(UNCLEAR, VALID, VALID)
    assert code == 0
    assert [each["judgement"] for each in results] == ["valid", "valid"]
    assert results[0]["first_try"] == "no steady state"
    assert "first_try" not in results[1]
    assert lines[0].endswith("valid (second try; the first was inconclusive: no steady state)")
    assert lines[-1] == ("2 drills: 2 valid (1 repeated because the first try was inconclusive): valid, exit 0")
    assert "2 of them valid (1 repeated because" in page


@pytest.mark.parametrize(
    ("ends", "code", "last"),
    [
        ((VALID, VALID), 0, "2 drills: 2 valid: valid, exit 0"),
        ((UNCLEAR, UNCLEAR, VALID), 4, "inconclusive, exit 4"),
        (
            (UNCLEAR, UNCLEAR, BROKEN),
            1,
            "1 broken, 1 inconclusive (1 repeated because the first try was inconclusive): broken, exit 1",
        ),
        ((BROKEN, VALID), 1, "2 drills: 1 valid, 1 broken: broken, exit 1"),
    ],
)
def test_the_last_line_of_a_series_is_its_verdict(series_of, ends, code, last):
    found, _, lines, _ = series_of(*ends)
    assert found == code
    assert lines[-1].endswith(last)
    assert ("not valid:" in lines) is (code != 0)


def test_a_part_of_a_list_does_not_replace_the_results_of_the_whole(series_of, tmp_path):
    code, results, _, page = series_of(VALID, arguments=["--only", "kill"])
    assert (code, results) == (0, None)
    assert "old" in page
    series_of(VALID, arguments=["--list", "short", "--only", "pause", "--out", str(tmp_path / "part.json")])
    assert [each["fault"] for each in json.loads((tmp_path / "part.json").read_text())] == ["pause"]
