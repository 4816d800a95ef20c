from rmqkit.broker.node import Broker
from rmqkit.broker.replication import ha_state, truncation
from tests.broker.replica_group import Group
from tests.helpers import flows


def test_the_states_are_drawn_as_they_are():
    assert flows.is_drawn(ha_state.MOVES, ha_state)
    assert flows.is_drawn(truncation.MOVES, truncation)


def test_a_truncation_that_fails_after_the_stop_changes_no_state():
    group = Group().in_sync()

    def stop_and_fail(slave: Broker) -> None:
        slave.replication.follow.stop()
        slave.replication.follow._cut_ended(OSError(28, "no space"))

    group.world.call("broker-1", stop_and_fail)
    group.world.run_for(100)
    assert group.slave.replication.state == "stopped"
