"""Epochs grow from owner to owner, on all brokers; offsets of an older owner are refused."""

import json

import pytest

from rmqkit.broker.locks.contract import Loose
from rmqkit.broker.locks.lock_table import LOCK_LIVE_MS
from rmqkit.errors import ConfigError
from rmqkit.testing import LockModeContract, SimBroker
from rmqkit.testing.lock_modes import QUEUES
from rmqkit.wire.bodies import ConsumerData, HeartbeatData, LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit_fencing.epochs import FILE, Claim, Epochs
from rmqkit_fencing.epochs_handler import GET_LOCK_EPOCHS
from rmqkit_fencing.fencing import CLAIM_TIMEOUT_MS
from rmqkit_fencing.plugin import _mode

WALL = 1_000_000_000_000


class Lab(LockModeContract):
    make = _mode
    replicas = 3

    def __init__(self, make=_mode):
        type(self).make = staticmethod(make)
        self.cluster = self.make_group()

    def epochs(self, client_id, *queues, at=0):
        """Lock queues. Return the epochs of the granted ones by queue id, or an error text."""
        answers = self.ask(client_id, *queues, at=at)
        assert self.cluster.world.run_until(lambda: answers, self.answers_within_ms)
        outcome, more = answers[0]
        if isinstance(outcome, str):
            return outcome
        return dict(zip((queue.queue_id for queue in outcome), more.get("epochs", ()), strict=True))


Lab.__test__ = False


def test_a_new_owner_has_a_greater_epoch_and_a_renewal_the_same():
    lab = Lab()
    first = lab.epochs("c1", *QUEUES)
    assert sorted(first) == [0, 1, 2, 3]
    assert all(epoch > WALL for epoch in first.values())
    assert lab.epochs("c1", *QUEUES) == first
    lab.unlock("c1", *QUEUES[:2])
    second = lab.epochs("c2", *QUEUES)
    assert sorted(second) == [0, 1]
    assert all(second[at] > first[at] for at in second)
    lab.unlock("c2", *QUEUES[:1])
    again = lab.epochs("c1", *QUEUES)
    assert again[0] > second[0]
    assert again[2] == first[2]


@pytest.mark.long
def test_epochs_grow_across_coordinators_cuts_and_restarts():
    lab = Lab()
    seen = [lab.epochs("c1", QUEUES[0])[0]]
    lab.cut(0)
    lab.advance(LOCK_LIVE_MS + 1000)
    seen.append(lab.epochs("c2", QUEUES[0], at=1)[0])
    lab.heal()
    lab.advance(5_000)
    lab.unlock("c2", QUEUES[0], at=1)
    for at in range(3):
        lab.kill(at)
    lab.advance(LOCK_LIVE_MS + 5_000)
    seen.append(lab.epochs("c3", QUEUES[0])[0])
    lab.advance(CLAIM_TIMEOUT_MS)  # the grant needs a quorum; the third member has heard of it now
    seen.append(lab.epochs("c3", QUEUES[0], at=2)[0])
    assert seen[0] < seen[1] < seen[2] == seen[3]


def test_a_coordinator_that_knows_less_claims_again():
    lab = Lab()
    lab.advance(1000)
    names = lab.cluster.brokers
    known = lab.cluster.broker(names[0]).clock.wall_ms + 10_000_000
    for name in names[1:]:
        epochs = lab.cluster.broker(name).locks.epochs
        epochs.agree("G", "c9", [Claim(*QUEUES[0], known)], 0, lambda agreed: None)
    lab.advance(100)
    assert lab.epochs("c1", *QUEUES[:2])[0] == known + 1


def test_members_in_another_mode_agree_to_nothing():
    lab = Lab(lambda broker: _mode(broker) if broker.config.identity.broker_id == 0 else Loose())
    lab.advance(LOCK_LIVE_MS)
    assert lab.epochs("c1", *QUEUES) == "no epoch: 1 brokers of the group agreed to one, 2 must agree"


def test_the_successor_grants_to_the_lock_holder_and_to_another_client_after_its_lease():
    """The successor was killed before, and learned votes from its peers before the master died.

    So it may vote at once, without waiting for a lease to expire.
    """
    lab = Lab()
    world, names = lab.cluster.world, lab.cluster.brokers
    first = lab.epochs("c1", *QUEUES)
    lab.advance(500)
    lab.kill(1)
    lab.advance(5_000)
    facts = lab.mode(1).facts(lab.now_ms(1))
    assert (facts["lockVotesFrom"], facts["lockHeld"], facts["lockEpochs"]) == ("0", "4", "4")
    world.kill(names[0])
    assert lab.epochs("c2", *QUEUES, at=1) == {}
    assert lab.epochs("c1", *QUEUES[:3], at=1) == {at: first[at] for at in range(3)}
    lab.unlock("c1", QUEUES[0], at=1)
    second = lab.epochs("c2", *QUEUES, at=1)
    assert sorted(second) == [0]
    lab.advance(LOCK_LIVE_MS)
    second |= lab.epochs("c2", *QUEUES, at=1)
    assert sorted(second) == [0, 1, 2, 3]
    assert all(second[at] > first[at] for at in second)


def test_an_epoch_is_durable_before_the_lock_is_granted():
    broker = SimBroker("lockMode=fencing")
    world = broker.world
    disk = world.disk("broker")
    disk.fail("replace", FILE)
    outcomes = []
    epochs: Epochs = broker.node.locks.epochs
    world.call(
        "broker",
        lambda node: epochs.agree("G", "c1", [Claim("T", "broker-a", 0, 7)], node.clock.mono_ms, outcomes.append),
    )
    broker.advance(1000)
    assert outcomes == [[False]]
    disk.heal()
    world.call(
        "broker",
        lambda node: epochs.agree("G", "c1", [Claim("T", "broker-a", 0, 7)], node.clock.mono_ms, outcomes.append),
    )
    broker.advance(1000)
    assert outcomes == [[False], [True]]
    assert json.loads(broker.file(FILE))["epochs"][0]["number"] == 7


def test_a_file_that_is_damaged_ends_the_start():
    broker = SimBroker("lockMode=fencing")
    lock(broker, "c1")
    broker.stop()
    folder = broker.world.folder("broker")
    for path in (FILE, f"{FILE}.bak"):
        folder.remove(folder.full(path))
        folder.make_file(folder.full(path)).write(0, b"nonsense")
    with pytest.raises(Exception, match="lockEpochs"):
        broker.start()


# --- the fence


def lock(broker, client_id):
    asked = LockBatchBody(client_id=client_id, consumer_group="G", mq_set=[MessageQueue("T", "broker-a", 0)]).encode()
    return LockBatchAnswer.decode(broker.ask(RequestCode.LOCK_BATCH_MQ, None, asked).body)


def unlock(broker, client_id):
    asked = LockBatchBody(client_id=client_id, consumer_group="G", mq_set=[MessageQueue("T", "broker-a", 0)]).encode()
    assert broker.ask(RequestCode.UNLOCK_BATCH_MQ, None, asked).is_ok


def join(broker, client_id):
    """Make the connection of the tests a connection of this client."""
    data = ConsumerData(group_name="G", message_model="CLUSTERING", consume_type="CONSUME_PASSIVELY")
    body = HeartbeatData(client_id=client_id, consumer_data_set=[data]).encode()
    assert broker.ask(RequestCode.HEART_BEAT, None, body).is_ok


def commit(broker, offset):
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    return broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


@pytest.fixture
def broker():
    made = SimBroker("lockMode=fencing", "plugins=fencing", "plugin.fencing.keepMillis=600000")
    made.create_topic("T")
    made.advance(100)
    join(made, "c1")
    return made


def test_the_answer_has_the_epochs_beside_upstreams_fields(broker):
    answer = lock(broker, "c1")
    (epoch,) = answer.rmqkit["epochs"]
    assert epoch > WALL
    shown = json.loads(broker.ask(GET_LOCK_EPOCHS, {"group": "G"}).body)
    assert shown == {
        "epochs": [{"ageMillis": shown["epochs"][0]["ageMillis"], "clientId": "c1", "epoch": epoch, "group": "G",
                    "queueId": 0, "topic": "T"}],
        "leftOut": 0,
    }  # fmt: skip
    assert json.loads(broker.ask(GET_LOCK_EPOCHS, {"topic": "other"}).body)["epochs"] == []


def test_an_owner_of_yesterday_commits_nothing(broker):
    assert commit(broker, 1).is_ok, "the queue was never locked"
    lock(broker, "c1")
    assert commit(broker, 5).is_ok
    broker.advance(LOCK_LIVE_MS + 1000)
    (epoch,) = lock(broker, "c2").rmqkit["epochs"]
    refused = commit(broker, 9)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == f"the queue is locked under epoch {epoch} by c2: offsets from c1 are refused"
    assert broker.node.offsets.query("G", "T", 0) == 5
    assert broker.node.view.facts()["lockCommitsRefused"] == "1"
    join(broker, "c2")
    assert commit(broker, 6).is_ok


def test_commits_are_refused_after_the_lease_and_a_restart_until_the_fence_expires(broker):
    lock(broker, "c2")
    broker.advance(LOCK_LIVE_MS + 1000)
    assert not commit(broker, 9).is_ok
    broker.stop()
    broker.start()
    join(broker, "c1")
    assert not commit(broker, 9).is_ok
    broker.advance(600_001)
    join(broker, "c1")
    assert commit(broker, 9).is_ok


def test_an_offset_in_a_pull_is_fenced_too(broker):
    commit(broker, 1)
    lock(broker, "c2")
    broker.send("T", b"hello")
    ext = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5",
        "commitOffset": "9", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    assert broker.ask(RequestCode.PULL_MESSAGE, ext).is_ok, "reading is allowed"
    assert broker.node.offsets.query("G", "T", 0) == 1


def test_a_queue_that_was_given_back_is_still_its_last_owners(broker):
    """A consumer that leaves commits after it has released the lock."""
    lock(broker, "c1")
    unlock(broker, "c1")
    assert commit(broker, 3).is_ok


def test_settings_are_looked_at():
    with pytest.raises(ConfigError, match="keepMilis"):
        SimBroker("lockMode=fencing", "plugin.fencing.keepMilis=1")


def test_installed_and_not_named_it_changes_nothing():
    broker = SimBroker()
    assert isinstance(broker.node.locks, Loose)
    assert broker.node.view.commit_guard is None
    broker = SimBroker("plugins=fencing")
    assert "lockMode is not fencing" in broker.ask(GET_LOCK_EPOCHS).remark
