"""`rmqkit drill compare` and `drill run`: output and files, with hand-made drills."""

import html
import json
import shlex
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rmqkit.cli.drills import command, drill_output
from rmqkit.drill.engine import Outcome
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.real.runner import DrillResult
from tests.drill.hand import whole
from tests.drill.report.test_report import run_of


@pytest.fixture
def drill(tmp_path, monkeypatch):
    """A function that runs the command with hand-made drills.

    With `slaveTimeout` set, a drill has twice the load at the same rate.
    """
    asked = []

    def drill(plan):
        asked.append(plan)
        hand = whole()
        if "slaveTimeout" in plan.settings:
            for number in range(20):
                hand.send(f"more-{number}", 10 + number, at_ms=4_000 + 100 * number)
        run, verdict = run_of(hand, tmp_path)
        return DrillResult(plan, Outcome(verdict), hand.history, run)

    monkeypatch.setattr(command, "_with_own_cluster", drill)

    def run(*words):
        done = CliRunner().invoke(command.app, words)
        folders = sorted(tmp_path.glob("drills/*"))
        return SimpleNamespace(code=done.exit_code, out=done.stdout, err=done.stderr, folders=folders, asked=asked)

    return run


def row(out, name):
    return next(line[len(name) :].split() for line in out.splitlines() if line.startswith(f"{name} "))


def test_each_total_has_its_rate_beside_it(drill):
    done = drill("compare", "--set", "", "--set", "slaveTimeout=500")
    short, long = map(int, row(done.out, "acknowledged"))
    assert long > short
    lengths = list(map(float, row(done.out, "length of the load, s")))
    rates = list(map(float, row(done.out, "acknowledged per second")))
    assert rates == pytest.approx([short / lengths[0], long / lengths[1]], abs=0.06)
    assert len(row(done.out, "refused per second")) == len(row(done.out, "unknown per second")) == 2


@pytest.mark.parametrize("words", [[], ["--runs", "2"]])
def test_the_folder_of_every_run_is_printed_with_its_side(drill, words):
    done = drill("compare", "--set", "", "--set", "slaveTimeout=500", *words)
    assert done.folders
    for folder in done.folders:
        assert str(folder) in done.out
    printed = [line for line in done.out.splitlines() if str(done.folders[0].parent) in line]
    assert len(printed) == len(done.folders) == 2 * (2 if words else 1)
    assert sum(line.startswith("no settings ") for line in printed) == len(printed) / 2
    assert sum(line.startswith("slaveTimeout=500 ") for line in printed) == len(printed) / 2


@pytest.mark.parametrize(
    ("words", "services"),
    [([], ("timers", "transactions", "pop")), (["--load", "none"], ()), (["--load", "pop"], ("pop",))],
)
def test_both_sides_have_the_load(drill, words, services):
    done = drill("compare", "--set", "", "--set", "slaveTimeout=500", *words)
    assert [plan.services for plan in done.asked] == [services, services]


def test_a_figure_that_some_runs_lack_says_how_many_have_it():
    ends = iter(({}, {"x": 1.0}, {"x": 2.0}, {"x": 5.0}))
    sides = [[SimpleNamespace(outcome=SimpleNamespace(verdict=SimpleNamespace(judgement="valid")))] * 2] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drill_output, "_measured", lambda side: [next(ends) for _ in side])
        rows = drill_output.compared(sides)
    assert rows[1:] == [("x", "1 (1 of 2 runs)", "3.5 [2 – 5]", "4 (1 of 2 runs)")]


def test_two_equal_sides_are_both_in_the_document(drill):
    done = drill("compare", "--set", "slaveTimeout=500", "--set", "slaveTimeout=500", "--json")
    found = json.loads(done.out)
    assert list(found) == ["slaveTimeout=500 (1)", "slaveTimeout=500 (2)"]
    assert {each["folder"] for each in found.values()} == {str(folder) for folder in done.folders}


@pytest.mark.long
def test_run_and_report_are_named_below_the_verdict(drill, tmp_path):
    done = drill("run", "--report", str(tmp_path / "other.html"))
    (folder,) = done.folders
    assert done.out.splitlines()[-2:] == [f"run     {folder}", f"report  {tmp_path / 'other.html'}"]


PLAN = Plan(
    fault="pause",
    target="slave",
    mode=Mode.parse("sync+pool"),
    seed=7,
    groups=2,
    replicas=3,
    settings={"messageDelayLevel": "1s 2s", "lockMode": "strict"},
    breaks=("slave-differs",),
    fault_ms=2_500,
    send_timeout_ms=1_500,
)


@pytest.mark.parametrize("plan", [PLAN, Plan(replicas=2, fault_ms=0), PLAN.changed(secure=True)])
def test_the_command_of_a_report_asks_for_the_same_plan(drill, plan):
    words = shlex.split(command.run_command(plan))
    assert words[:3] == ["rmqkit", "drill", "run"]
    assert drill(*words[2:]).asked == [plan]


def test_each_report_of_repeated_drills_has_its_own_seed(drill):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    done = drill("run", "--repeat", "2", "--seed", "5")
    pages = [html.unescape((folder / "report.html").read_text()) for folder in done.folders]
    assert [seed for page in pages for seed in (5, 6) if f"--seed {seed}</pre>" in page] == [5, 6]
