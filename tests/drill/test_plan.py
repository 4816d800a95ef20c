"""Plans: modes from words and from settings, the JSON form, and plans that make no sense."""

from itertools import islice, product

import pytest

from rmqkit.drill import workload
from rmqkit.drill.plan import Flush, Mode, Plan, PlanError, ReplicationMode
from rmqkit.drill.promises.table import TABLE


@pytest.mark.parametrize(("replication", "flush"), TABLE)
def test_the_settings_of_a_mode_are_that_mode(replication, flush):
    mode = Mode(replication, flush)
    assert Mode.of(mode.settings(2)) == mode
    assert Mode.parse(str(mode)) == mode


def test_a_mode_without_a_flush_is_one_with_async_flush():
    assert Mode.parse("sync") == Mode(ReplicationMode.SYNC, Flush.ASYNC)
    with pytest.raises(PlanError, match="use one of async, sync, quorum, all-ack, some-ack, optionally followed by"):
        Mode.parse("quorum+fsync")
    with pytest.raises(PlanError, match="needs its log in files"):
        Mode.parse("all-ack+pool")


def test_apaches_defaults_are_an_async_master():
    assert Mode.of({}) == Mode(ReplicationMode.ASYNC, Flush.ASYNC)
    assert Mode.of({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}).replication is ReplicationMode.SYNC


def test_a_plan_survives_json():
    plan = Plan(
        fault="pause", seed=7, mode=Mode.parse("sync+pool"), settings={"a": "b"}, breaks=("x",), seen={"slaveTimeout": "9"}
    )
    assert Plan.from_json(plan.as_json()) == plan
    assert plan.setting("slaveTimeout", 1) == 9
    assert plan.setting("nothing", 1) == 1


@pytest.mark.parametrize(
    ("content", "told"), [({"sped": 1}, "no field 'sped'"), ({"writers": 0}, "writers = 0"), ({"fault_ms": -1}, "negative")]
)
def test_invalid_plans_are_refused(content, told):
    with pytest.raises(PlanError, match=told):
        Plan.from_json(content)


def test_the_workload_follows_from_the_seed():
    def keys_of(seed, number):
        return list(islice(workload.script(Plan(seed=seed), number), 50))

    assert keys_of(3, 0) == keys_of(3, 0)
    assert keys_of(3, 0) != keys_of(4, 0)
    for first, second in product((0, 1), repeat=2):
        if first != second:
            assert {each.key for each in keys_of(3, first)}.isdisjoint(each.key for each in keys_of(3, second))
    assert {each.queue for each in keys_of(3, 0)} == {0, 1, 2, 3}
    assert {each.queue for each in keys_of(3, 1)} == {-1}
    assert all(len(each.body) == Plan().body_size for each in keys_of(3, 0))
