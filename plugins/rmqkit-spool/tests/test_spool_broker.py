"""The spool in simulated clusters: a group loses its master, and none takes its messages."""

import errno
import subprocess
import sys

import pytest

from rmqkit import plugins
from rmqkit.broker.escape import Escaping
from rmqkit.config import from_values
from rmqkit.errors import ConfigError
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing import SimBroker
from rmqkit.wire.record import decode_record
from rmqkit_spool.plugin import NAME, rmqkit_escape_strategies
from rmqkit_spool.segments import FOLDER

A0, A1, B0 = "broker-a-0", "broker-a-1", "broker-b-0"
OK, SERVICE_NOT_AVAILABLE, UNKNOWN = PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.UNKNOWN_ERROR


class Lab:
    """Two groups, each with a master. The spool of `broker-a-0` puts messages on `broker-b-0`."""

    def __init__(self, *, replicas=1, acting=False, **settings):
        self.world = World(1)

        def prepared(broker):
            if broker.config.identity.broker_name == "broker-a":
                broker.escape.strategy = rmqkit_escape_strategies()[NAME](broker.view)

        settings = {f"plugin.spool.{name}": value for name, value in settings.items()}
        self.cluster = SimCluster(
            self.world, groups=2, replicas=replicas, acting=acting, fast=acting, settings=settings, prepared=prepared
        )
        self.cluster.ready()

    def node(self, name=A0):
        return self.cluster.broker(name)

    def spool(self, name=A0):
        return self.node(name).escape.strategy

    def create(self, topic, *names):
        for name in names or (A0, B0):
            self.world.call(name, lambda broker: broker.topics.create_system(topic, 4))
        self.world.run_for(100)

    def put(self, body, topic="T", limit_ms=20_000):
        answers = []
        put = Put(topic, 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, body, b"", 0)
        self.world.call(A0, lambda broker: broker.escape.put(put, "SCHEDULE:1:0", answers.append))
        assert self.world.run_until(lambda: answers, limit_ms)
        return answers[0]

    def bodies(self, topic="T", name=B0):
        store = self.node(name).store
        found = []
        for queue in [queue for queue in store.queues() if queue.topic == topic]:
            for offset in range(queue.offset_min, queue.offset_max):
                (entry,) = store.entries(topic, queue.queue_id, offset, 1)
                found.append(decode_record(store.read_log(entry.phy_offset, entry.size), check_crc=True))
        return [bytes(each.body) for each in sorted(found, key=lambda each: each.phy_offset)]

    def until(self, reached, limit_ms=60_000):
        assert self.world.run_until(reached, limit_ms), dict(self.spool().facts())

    def back(self, name):
        self.world.restart(name)
        self.until(lambda: self.node(name).serving and self.node(name).registration.registered)
        self.world.run_for(100)


@pytest.fixture
def alone():
    """A lab whose `broker-b-0` is down, so that no master takes messages."""
    lab = Lab()
    lab.create("T")
    lab.create("U")
    lab.world.kill(B0)
    lab.world.run_for(100)
    return lab


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_spooled_messages_survive_a_restart_and_are_delivered_once_in_order(alone, end):
    bodies = [b"%03d" % number for number in range(30)]
    assert {alone.put(body) for body in bodies} == {OK}
    assert alone.spool().waiting() == 30
    getattr(alone.world, end)(A0)
    alone.world.run_for(5_000)
    assert not alone.world.is_alive(A0)
    alone.back(A0)
    assert alone.spool().waiting() == 30
    alone.back(B0)
    alone.until(lambda: alone.spool().waiting() == 0)
    alone.world.run_for(5_000)
    assert alone.bodies() == bodies
    assert alone.world.disk(A0).list(FOLDER) == []


def test_a_kill_in_the_middle_of_bringing_them_costs_repeats_at_most(alone):
    bodies = [b"%03d" % number for number in range(60)]
    for body in bodies:
        assert alone.put(body) is OK
    alone.back(B0)
    for part in (10, 30):
        alone.until(lambda part=part: len(set(alone.bodies())) >= part)
        alone.world.kill(A0)
        alone.back(A0)
    alone.until(lambda: alone.spool().waiting() == 0)
    assert list(dict.fromkeys(alone.bodies())) == bodies
    assert len(alone.bodies()) <= len(bodies) + 2, "at most the one in flight is repeated at each kill"


def test_a_topic_that_has_no_master_holds_up_no_other():
    lab = Lab()
    lab.create("T")
    lab.create("only-here", A0)
    assert [lab.put(b"1", "only-here"), lab.put(b"2", "T"), lab.put(b"3", "only-here")] == [OK] * 3
    assert lab.bodies("T") == [b"2"]
    assert lab.spool().facts()["spoolTopics"] == "1"
    lab.world.run_for(30_000)
    assert lab.spool().waiting() == 2
    lab.create("only-here", B0)
    lab.until(lambda: lab.bodies("only-here") == [b"1", b"3"])


def test_a_new_message_does_not_overtake_spooled_ones(alone):
    assert alone.put(b"1") is OK
    alone.back(B0)
    assert [alone.put(b"2"), alone.put(b"3")] == [OK, OK]
    alone.until(lambda: len(alone.bodies()) == 3)
    assert alone.bodies() == [b"1", b"2", b"3"]


SMALL = {"sizeMax": 1 << 16, "segmentSize": 1 << 12}


@pytest.mark.parametrize(("settings", "words"), [({"messagesMax": 5}, "5 messages"), (SMALL, "65536 bytes")])
def test_a_full_spool_refuses_and_takes_again_when_there_is_room(settings, words):
    lab = Lab(**settings)
    lab.create("T")
    lab.world.kill(B0)
    lab.world.run_for(100)
    put = []
    for number in range(100):
        body = b"%03d" % number + bytes(2_000)
        if lab.put(body) is not OK:
            break
        put.append(body)
    assert 5 <= len(put) < 40
    assert words in lab.spool().facts()["escapeWhy"]
    lab.world.run_for(1_000)
    assert lab.put(b"still full") is SERVICE_NOT_AVAILABLE
    lab.back(B0)
    lab.until(lambda: lab.spool().waiting() == 0)
    assert lab.bodies() == put
    assert lab.put(b"more") is OK
    lab.until(lambda: lab.bodies()[-1] == b"more")
    assert not lab.spool().facts()["escapeWhy"]


def test_room_is_made_where_few_messages_hold_a_file():
    """A message that no master takes stays in the oldest file while others come and go."""
    lab = Lab(**SMALL)
    lab.create("T")
    lab.create("only-here", A0)
    lab.world.kill(B0)
    lab.world.run_for(100)
    assert lab.put(b"held", "only-here") is OK
    for round_number in range(3):
        count = 0
        while lab.put(b"%d" % round_number + bytes(1_500)) is OK:
            count += 1
        assert count > 20, "there was room"
        lab.back(B0)
        lab.until(lambda: lab.spool().waiting() == 1)
        lab.world.run_for(2_000)
        lab.world.kill(B0)
        lab.world.run_for(100)
    lab.back(B0)
    lab.create("only-here", B0)
    lab.until(lambda: lab.bodies("only-here") == [b"held"])


def test_a_disk_that_is_full_takes_nothing_and_costs_nothing(alone):
    disk = alone.world.disk(A0)
    write = disk.write

    def full(path, position, buffers):
        if path.startswith(FOLDER):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, position, buffers)

    disk.write = full
    assert alone.put(b"1") is SERVICE_NOT_AVAILABLE
    assert "No space left" in alone.spool().facts()["escapeWhy"]
    disk.write = write
    assert alone.put(b"1") is OK
    alone.back(B0)
    alone.until(lambda: alone.bodies() == [b"1"])


def test_a_disk_that_cannot_be_read_for_a_while_costs_nothing(alone):
    """The spool drops a stored message only if its bytes are certainly lost."""
    assert alone.put(b"1") is OK
    disk = alone.world.disk(A0)
    read = disk.read

    def failing(path, position, size):
        if path.startswith(FOLDER):
            raise OSError(errno.EIO, "Input/output error")
        return read(path, position, size)

    disk.read = failing
    alone.back(B0)
    alone.world.run_for(3000)
    assert alone.spool().waiting() == 1
    assert "Input/output error" in alone.spool().facts()["escapeWhy"]
    disk.read = read
    alone.until(lambda: alone.bodies() == [b"1"])
    assert alone.spool().facts()["spoolDamaged"] == "0"


def test_after_a_failed_sync_it_takes_nothing_more_and_gives_what_it_has(alone):
    assert alone.put(b"1") is OK
    disk = alone.world.disk(A0)
    sync = disk.sync
    disk.sync = lambda path, then: sync(path, lambda error: then(OSError(errno.EIO, "Input/output error")))
    assert alone.put(b"2") is UNKNOWN
    disk.sync = sync
    assert alone.put(b"3") is SERVICE_NOT_AVAILABLE
    assert "Input/output error" in alone.spool().facts()["escapeWhy"]
    alone.back(B0)
    alone.until(lambda: alone.spool().waiting() == 0)
    assert alone.bodies() == [b"1", b"2"]


def test_a_group_whose_only_other_is_gone_goes_on_and_its_own_master_takes_the_rest():
    """The delay level continues.

    The slave, no longer acting, puts the stored messages on its own master.
    """
    lab = Lab(replicas=2, acting=True)
    lab.create("T", A0)
    levels = lab.node(A0).view.delay
    for number in range(5):
        put = Put("T", 1, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"late%d" % number, b"", 0)
        lab.world.call(A0, lambda broker, put=put: broker.puts.await_own("T", levels.append(put, 2), lambda status: None))
    lab.world.run_for(500)
    lab.world.kill(A0)
    lab.until(lambda: lab.spool(A1).waiting() == 5)
    lab.until(lambda: lab.node(A1).view.delay.offsets.by_level.get(2) == 5)
    facts = lab.node(A1).view.facts()
    assert (facts["escapeWaiting"], facts["spoolMessages"], facts["escapeStrategy"]) == ("5", "5", "auto")
    lab.back(A0)
    late = [b"late%d" % number for number in range(5)]
    lab.until(lambda: [body for body in lab.bodies(name=A0) if body in late] == late)
    assert not lab.node(A1).roles.is_acting
    lab.world.run_for(20_000)
    assert [body for body in lab.bodies(name=A0) if body in late] == late
    assert lab.spool(A1).waiting() == 0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("sizeMax", "1", "plugin.spool.sizeMax"),
        ("sizemax", "100000", "did you mean sizeMax?"),
        ("messagesMax", "many", "plugin.spool.messagesMax"),
    ],
)
def test_a_setting_that_makes_no_sense_ends_the_start_in_one_line(key, value, words):
    with pytest.raises(ConfigError) as caught:
        SimBroker("escapeStrategy=spool", f"plugin.spool.{key}={value}", modules=["rmqkit_spool.plugin"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_is_chosen_by_its_name():
    broker = SimBroker("escapeStrategy=spool", modules=["rmqkit_spool.plugin"])
    facts = broker.node.view.facts()
    assert (facts["escapeStrategy"], facts["spoolMessages"]) == ("spool", "0")
    values = {"brokerName": "b", "escapeStrategy": "spol", "storePathRootDir": "/"}
    with pytest.raises(ConfigError, match="did you mean spool"):
        plugins.load(["rmqkit_spool.plugin"]).broker_parts(from_values("broker", values))


def test_while_it_is_read_nothing_is_taken():
    lab = Lab()
    lab.create("T")
    answers = []
    put = Put("T", 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"x", b"", 0)

    def new_spool(broker):
        broker.duties.remove("escape-spool")
        spool = rmqkit_escape_strategies()[NAME](broker.view)
        spool.put(Escaping(put, "o"), answers.append)

    lab.world.call(A0, new_spool)
    lab.world.run_for(10)
    assert answers == [SERVICE_NOT_AVAILABLE]


def test_installed_and_not_named_it_loads_nothing():
    code = (
        "import sys; from rmqkit import plugins; plugins.load(['rmqkit_spool.plugin']);"
        "print(sorted(name for name in sys.modules if name.startswith('rmqkit_spool')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rmqkit_spool', 'rmqkit_spool.plugin']"
