"""`rmqkit drill compare`: what it prints of two sides, from drills that are made by hand."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rmqkit.cli import drills
from rmqkit.drill.doing import Done
from rmqkit.drill.engine import Outcome
from tests.drill.hand import whole
from tests.drill.test_report import run_of


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Run the command; the load of the second side is twice as long, with the same rate."""

    def drill(plan):
        hand = whole()
        if "slaveTimeout" in plan.settings:
            for number in range(20):
                hand.send(f"more-{number}", 10 + number, at_ms=4_000 + 100 * number)
        run, verdict = run_of(hand, tmp_path)
        return Done(plan, Outcome(verdict), hand.history, run)

    monkeypatch.setattr(drills, "_with_own_cluster", drill)

    def run(*words):
        done = CliRunner().invoke(drills.app, ["compare", *words])
        return SimpleNamespace(
            code=done.exit_code, out=done.stdout, err=done.stderr, folders=sorted(tmp_path.glob("drills/*"))
        )

    return run


def row(out, name):
    return next(line[len(name) :].split() for line in out.splitlines() if line.startswith(f"{name} "))


def test_each_total_has_its_rate_beside_it(compare):
    done = compare("--set", "", "--set", "slaveTimeout=500")
    short, long = map(int, row(done.out, "acknowledged"))
    assert long > short
    lengths = list(map(float, row(done.out, "length of the load, s")))
    rates = list(map(float, row(done.out, "acknowledged per second")))
    assert rates == pytest.approx([short / lengths[0], long / lengths[1]], abs=0.06)
    assert len(row(done.out, "refused per second")) == len(row(done.out, "unknown per second")) == 2


@pytest.mark.parametrize("words", [[], ["--runs", "2"]])
def test_the_folder_of_every_run_is_printed_with_its_side(compare, words):
    done = compare("--set", "", "--set", "slaveTimeout=500", *words)
    assert done.folders
    for folder in done.folders:
        assert str(folder) in done.out
    printed = [line for line in done.out.splitlines() if str(done.folders[0].parent) in line]
    assert len(printed) == len(done.folders) == 2 * (2 if words else 1)
    assert sum(line.startswith("no settings ") for line in printed) == len(printed) / 2
    assert sum(line.startswith("slaveTimeout=500 ") for line in printed) == len(printed) / 2


def test_two_equal_sides_are_both_in_the_document(compare):
    done = compare("--set", "slaveTimeout=500", "--set", "slaveTimeout=500", "--json")
    found = json.loads(done.out)
    assert list(found) == ["slaveTimeout=500 (1)", "slaveTimeout=500 (2)"]
    assert {each["folder"] for each in found.values()} == {str(folder) for folder in done.folders}
