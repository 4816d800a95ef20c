"""Real drills with short times and fixed seeds, each on its own cluster.

`make drills` runs ninety-two.

`tests/cli/test_drills.py` covers `rmqkit fail-master` itself, with a kill.
"""

import logging

import pytest

from rmqkit.drill import runs
from rmqkit.drill.plan import SERVICES, Mode, Plan
from rmqkit.drill.promises import Judgement
from rmqkit.drill.real.runner import with_own_cluster
from rmqkit.drill.real.services.table import drain_ms
from rmqkit.drill.stages import RETURN, STAGES, TAKEOVER, stages

#: stages of timers, transactions and pop
OF_SERVICES = {"timer released", "transaction resolved", "pop ack accepted"}
#: stages of controller mode
OF_ELECTIONS = {"another master elected", "the elected master serves", "slave of the new master"}
SHORT = {"replicas": 2, "before_ms": 400, "fault_ms": 1_500, "settle_ms": 500}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "rmqkit")


#: with these a slave acts after little more than a second without heartbeats
QUICK = {
    "enableSlaveActingMaster": "true",
    "supportActingMaster": "true",
    "notifyMinBrokerIdChanged": "true",
    "enableRemoteEscape": "true",
    "scanNotActiveBrokerInterval": "200",
    "brokerHeartbeatInterval": "200",
    "brokerNotActiveTimeoutMillis": "1000",
    "syncBrokerMemberGroupPeriod": "200",
}


@pytest.mark.long
def test_a_slave_acts_while_its_master_is_paused(tmp_path):
    plan = Plan(fault="pause", seed=14, groups=2, settings=QUICK, hold_ms=30_000, **{**SHORT, "fault_ms": 2_500})
    done = with_own_cluster(plan, tmp_path, lambda text: None)
    verdict = done.outcome.verdict
    story = [*verdict.timeline, *((each.name, each.finding) for each in verdict.promises)]
    assert verdict.judgement is Judgement.VALID, (verdict.why, story)
    counts = {each.name: each.finding.counts for each in verdict.promises}
    assert counts["one-master"]["acting ms"] > 0
    assert counts["delay-kept"]["escaped to broker-b"] > 0
    assert counts["progress-forward"]["changes"] == 2
    assert counts["locks-exclusive"]["granted"] > 0
    seen = {stage.name for stage in stages(done.history)}
    assert seen >= {*STAGES[TAKEOVER].values()} - {"a new group reads", *OF_SERVICES, *OF_ELECTIONS}
    assert seen >= {*STAGES[RETURN].values()} - OF_ELECTIONS


@pytest.mark.long
def test_timers_transactions_and_pop_survive_their_master(tmp_path):
    plan = Plan(fault="kill", seed=21, groups=2, settings=QUICK, services=SERVICES, **{**SHORT, "fault_ms": 5_000})
    done = with_own_cluster(plan, tmp_path, lambda text: None)
    verdict = done.outcome.verdict
    story = [*verdict.timeline, *((each.name, each.finding) for each in verdict.promises)]
    assert verdict.judgement is Judgement.VALID, (verdict.why, story)
    counts = {each.name: each.finding.counts for each in verdict.promises}
    assert counts["timer-kept"]["escaped"] > 0
    assert counts["timer-kept"]["recalled"] > 0
    assert counts["transaction-atomic"]["asked about"] > 0
    assert counts["transaction-atomic"]["producer died"] > 0
    assert counts["transaction-atomic"]["rolled back"] > 0
    assert counts["pop-kept"]["returned"] > 0
    seen = {stage.name for stage in stages(done.history)}
    assert seen >= {"timer released", "transaction resolved"}
    assert done.plan.services == SERVICES
    assert done.plan.seen["transactionCheckInterval"] == "1000", "a replay has the settings of the services"
    assert done.plan.drain_max_ms == drain_ms(done.plan)


@pytest.mark.parametrize(
    ("fault", "mode", "seed"),
    [
        pytest.param("isolate", "async", 13, marks=pytest.mark.long),
        pytest.param("pause", "sync+sync-flush", 12, marks=pytest.mark.long),
    ],
)
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
    # The run's files hold the verdict and the plan.
    assert runs.find(tmp_path, "last") == done.run
    assert runs.load_verdict(done.run) == verdict
    assert runs.load_plan(done.run) == done.plan
    assert runs.load_history(done.run).rows == done.history.rows
    assert sorted(path.stem for path in (done.run / runs.LOGS).iterdir()) == ["broker-a-0", "broker-a-1", "ns-0"]
    assert list(tmp_path.iterdir()) == [tmp_path / runs.DRILLS], "nothing else is left"
