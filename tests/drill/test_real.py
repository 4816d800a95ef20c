"""Real drills with short times and fixed seeds, each on a cluster of its own: what `make drills` does fifty times.

The third one of every test run is `rmqkit fail-master` itself (`tests/cli/test_drills.py`), which kills.
"""

import logging

import pytest

from rmqkit.drill import runs
from rmqkit.drill.doing import with_own_cluster
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.promises import Judgement

SHORT = {"replicas": 2, "before_ms": 400, "fault_ms": 1_500, "settle_ms": 500}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "rmqkit")


@pytest.mark.parametrize(("fault", "mode", "seed"), [("pause", "sync+sync-flush", 12), ("isolate", "async", 13)])
def test_a_fault_of_the_master_breaks_no_promise(tmp_path, fault, mode, seed):
    plan = Plan(fault=fault, mode=Mode.parse(mode), seed=seed, **SHORT)
    done = with_own_cluster(plan, tmp_path, lambda text: None)
    verdict = done.outcome.verdict
    story = [*verdict.timeline, *((each.name, each.finding) for each in verdict.promises)]
    assert verdict.judgement is Judgement.VALID, (verdict.why, story)
    assert verdict.proof
    assert all(each.finding.facts for each in verdict.promises)
    assert len(verdict.promises) == (13 if done.plan.acting else 9)
    assert done.plan.mode == plan.mode, "what the master said of itself"
    # What was written is what was judged.
    assert runs.find(tmp_path, "last") == done.run
    assert runs.load_verdict(done.run) == verdict
    assert runs.load_plan(done.run) == done.plan
    assert runs.load_history(done.run).rows == done.history.rows
    assert sorted(path.stem for path in (done.run / runs.LOGS).iterdir()) == ["broker-a-0", "broker-a-1", "ns-0"]
    assert list(tmp_path.iterdir()) == [tmp_path / runs.DRILLS], "nothing else is left"
