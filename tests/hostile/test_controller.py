"""A controller against invalid and forged frames: it stays alive, and every request has an answer.

The log `single` is one controller that leads. With `raft` it is one of three; some tests make it
the leader by playing an honest peer.
"""

import gc
import random
from typing import Any, Literal

import pytest

from rmqkit.config import from_values
from rmqkit.controller.heartbeats import TIMEOUT_MOST_MS
from rmqkit.controller.node import Controller
from rmqkit.controller.raft.controller_log import RaftControllerLog, make_raft
from rmqkit.controller.raft.core import Raft, RaftRole
from rmqkit.controller.raft.messages import LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.wire import encode_message, group_number
from rmqkit.controller.sets.table import MEMBERS_MAX
from rmqkit.controller.single_log import make_single
from rmqkit.hookspecs import Factory
from rmqkit.wire.codes import ResponseCode
from tests.controller.conftest import PORT, ControllerScript
from tests.hostile.controller_frames import ControllerMutator, log_entry, log_snapshot
from tests.hostile.rig import Rig
from tests.hostile.test_fuzz import BATCH, FRAMES, OBJECTS_MAX, SEED, held

SYSTEM_ERROR = ResponseCode.SYSTEM_ERROR
CONTROLLER_INVALID_REQUEST = ResponseCode.CONTROLLER_INVALID_REQUEST
CONTROLLER_BROKER_ID_INVALID = ResponseCode.CONTROLLER_BROKER_ID_INVALID
PEERS = ";".join(f"n{at}-10.0.0.{9 + at}:{PORT}" for at in range(3))
ALONE = PEERS.partition(";")[0]


def rig_of(make_log: Factory, peers: str, kind: Literal["controller", "nameserver"]) -> Rig:
    """Return a rig with a controller: alone, or as it is inside a name server."""
    values = {
        **({"enableControllerInNamesrv": "true", "kvConfigPath": "/c/kv.json"} if kind == "nameserver" else {}),
        "controllerStorePath": "/c",
        "configStorePath": "/c/controller.properties",
        "controllerDLegerPeers": peers,
        "controllerDLegerSelfId": "n0",
        "controllerDLegerGroup": "controllers",
    }
    config = from_values(kind, values)
    return Rig(lambda ports: Controller("c", ports, config, make_log, PORT))


def validate(node: Controller) -> None:
    node.sets.validate()
    node.live.validate()
    node.queue.validate()


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize(
    ("make_log", "peers", "kind"),
    [(make_single, ALONE, "controller"), (make_raft, PEERS, "controller"), (make_single, ALONE, "nameserver")],
    ids=["single", "raft", "inside a name server"],
)
def test_a_controller_survives(
    make_log: Factory, peers: str, kind: Literal["controller", "nameserver"], frames: int
) -> None:
    rig = rig_of(make_log, peers, kind)
    node = rig.node
    assert isinstance(node, Controller)
    frames = int(frames * 0.1)
    mutator = ControllerMutator(SEED + 3)
    sizes: list[int] = []
    for number in range(frames):
        data = mutator.frame()
        try:
            for chunk in mutator.chunks(data):
                rig.feed(number, chunk)
            if number % 4:
                rig.end_frame(number)
            if number % BATCH == BATCH - 1:
                rig.turn()
                validate(node)
            if number % 500 == 499:
                gc.collect()
                sizes.append(len(gc.get_objects()))
        except Exception as error:
            error.add_note(f"frame {number}: {data[:2000]!r}")
            raise
    assert node.log.failed == "", "no forged message has left the log with what cannot be applied"
    rig.close_all()
    assert rig.log.errors == []
    assert rig.answer_count > frames // 4
    held(rig)
    validate(node)
    assert len(node.live) == 0
    assert sizes[-1] - sizes[0] < OBJECTS_MAX


class LeaderScript(ControllerScript):
    """A controller of three that leads: this test plays an honest `n1`, as far as that needs."""

    def __init__(self) -> None:
        super().__init__({"controllerDLegerPeers": PEERS}, make_log=make_raft)
        self.stranger = self.connect(peer="10.0.0.66:40000")
        for peer in ("n1", "n2"):
            assert self.tell_peer(MessageKind.CENSUS_REPLY, sender=peer) == 0
        while self.member.state is not RaftRole.PRE_CANDIDATE:
            self.advance(100)
        assert self.tell_peer(MessageKind.PRE_VOTE_REPLY, term=1) == 0
        assert self.tell_peer(MessageKind.VOTE_REPLY, term=1) == 0
        self.agree()
        assert self.node.log.leadership.is_self

    @property
    def member(self) -> Raft:
        log = self.node.log
        assert isinstance(log, RaftControllerLog)
        assert log._member is not None
        return log._member

    def agree(self) -> None:
        """Let n1 have all entries, and answer the newest round of heartbeats."""
        self.finish_disk()
        member = self.member
        assert member.leading is not None
        self.tell_peer(MessageKind.APPEND_REPLY, term=member.term, position=member.log.last)
        self.tell_peer(MessageKind.HEARTBEAT_REPLY, term=member.term, round=member.leading.round)

    def tell_peer(self, kind: MessageKind, *, sender: str = "n1", term: int = 0, **fields: Any) -> int:
        """Send a message of the log in the name of a peer; return the code of the answer."""
        content = encode_message(RaftMessage(kind, sender, "n0", term, **fields), group_number(("n0", "n1", "n2")))
        return self.tell_bytes(content, sender=sender)

    def tell_bytes(self, content: bytes, *, sender: str = "n1", receiver: str = "n0", group: str = "controllers") -> int:
        return self.stranger.ask(60010, {"group": group, "sender": sender, "receiver": receiver}, content).code


@pytest.fixture
def leader() -> LeaderScript:
    return LeaderScript()


def test_forged_messages_do_not_end_a_leader(leader: LeaderScript) -> None:
    member = leader.member
    for kind in (MessageKind.APPEND, MessageKind.HEARTBEAT):
        assert leader.tell_peer(kind, term=1) == SYSTEM_ERROR, "a second leader of the term"
    assert leader.tell_peer(MessageKind.SNAPSHOT, term=1, position=Position(1, 9)) == SYSTEM_ERROR
    for term in (2**62 + 1, 2**64 - 1):
        assert leader.tell_peer(MessageKind.APPEND, term=term) == SYSTEM_ERROR
        assert leader.tell_peer(MessageKind.PRE_VOTE_REPLY, term=term, rejected=True) == SYSTEM_ERROR
    assert leader.tell_peer(MessageKind.APPEND_REPLY, term=1, position=Position(1, 2**64 - 1)) == SYSTEM_ERROR
    assert leader.tell_peer(MessageKind.APPEND_REPLY, term=1, position=Position(1, 2**40)) == 0, "it is no acknowledgement"
    assert leader.tell_peer(MessageKind.HEARTBEAT_REPLY, term=1, round=2**40) == 0
    assert leader.tell_peer(MessageKind.VOTE, term=99, position=Position(98, 2**40)) == 0, "it hears no candidate"
    assert leader.node.log.leadership.is_self
    assert (member.term, member.log.commit) == (1, 1)


@pytest.mark.parametrize("seed", range(12))
def test_forged_logs_do_not_end_a_follower(seed: int) -> None:
    """Entries and snapshots that fit into the log, and events that often fit into no table."""
    script = ControllerScript({"controllerDLegerPeers": PEERS}, make_log=make_raft)
    node, pick = script.node, random.Random(seed)
    stranger, group = script.connect(peer="10.0.0.66:40000"), group_number(("n0", "n1", "n2"))
    log = node.log
    assert isinstance(log, RaftControllerLog)
    assert log._member is not None
    changes: set[bytes] = set()
    for _ in range(200):
        known, term = log._member.log, log._member.term + pick.choice((0, 0, 0, 1))
        if pick.random() < 0.1:
            position = Position(pick.choice((term, term + 1)), known.last.index + pick.choice((1, 5)))
            message = RaftMessage(MessageKind.SNAPSHOT, "n1", "n0", term, position, data=log_snapshot(pick))
        else:
            index = pick.randint(max(known.start.index, known.last.index - 2), known.last.index)
            position = Position(known.term_at(index) or 0, index)
            own = pick.randint(position.term, max(position.term, term))
            entries = [LogEntry(own, index + 1 + at, log_entry(pick)) for at in range(pick.choice((0, 1, 2)))]
            commit = index + pick.choice((0, 0, 1, 2))
            message = RaftMessage(MessageKind.APPEND, "n1", "n0", term, position, commit=commit, entries=entries)
        fields = {"group": "controllers", "sender": "n1", "receiver": "n0"}
        assert stranger.ask(60010, fields, encode_message(message, group)).code in (0, SYSTEM_ERROR)
        script.finish_disk()
        validate(node)
        log._member.validate()
        changes.add(node.sets.snapshot())
        assert node.log.failed == "", "what is committed can be applied"
    node.sets.restore(node.sets.snapshot())
    assert len(changes) > 2
    assert int(node.log.facts()["refused"]) > 20


@pytest.mark.parametrize(
    "names",
    [{"sender": "n0"}, {"sender": "n9"}, {"sender": ""}, {"receiver": "n1"}, {"group": "other"}, {"group": "a\nb"}],
)
def test_messages_from_outside_the_group_are_refused(leader: LeaderScript, names: dict[str, str]) -> None:
    content = encode_message(RaftMessage(MessageKind.APPEND_REPLY, "n1", "n0", 1), group_number(("n0", "n1", "n2")))
    assert leader.tell_bytes(content, **names) == CONTROLLER_INVALID_REQUEST
    other_group = encode_message(RaftMessage(MessageKind.APPEND, "n1", "n0", 7), group_number(("n0", "n1")))
    assert leader.tell_bytes(other_group) == SYSTEM_ERROR
    for size in range(0, len(content), 7):
        assert leader.tell_bytes(content[:size]) == SYSTEM_ERROR, size
    assert leader.member.term == 1


def test_one_request_does_not_use_up_the_ids_of_a_set() -> None:
    script = ControllerScript({})
    broker = script.broker(1).join()
    for wanted in (2**63 - 1, 2**31, 2 + MEMBERS_MAX + 1, 0, -1):
        assert broker.ask(1013, appliedBrokerId=wanted, registerCheckCode="h:1;2").code == CONTROLLER_BROKER_ID_INVALID
    assert broker.ask(1012).ext["nextBrokerId"] == "2"
    assert script.broker(2).join().ask(1012).ext["nextBrokerId"] == "3"


def test_an_id_that_was_cleaned_away_is_not_given_again() -> None:
    script = ControllerScript({})
    one, two = script.pair()
    assert one.ask(1011, brokerControllerIdsToClean="2", isCleanLivingBroker="true").code == 0
    refused = two.ask(1013, appliedBrokerId=2, registerCheckCode=f"{two.address};17")
    assert refused.code == CONTROLLER_BROKER_ID_INVALID
    assert two.ask(1012).ext["nextBrokerId"] == "3"


@pytest.mark.parametrize("code", ["", "h", "h:0;1", ":1;1", "a b:1;1", "h:70000;1"])
def test_an_id_needs_an_address_that_others_can_use(code: str) -> None:
    broker = ControllerScript({}).broker(1)
    assert broker.ask(1013, appliedBrokerId=1, registerCheckCode=code).code == SYSTEM_ERROR
    assert broker.ask(1012).ext["nextBrokerId"] == "1"


def test_sets_that_come_and_go_leave_nothing() -> None:
    script = ControllerScript({})
    client = script.connect()
    for number in range(50):
        fields = {"clusterName": "C", "brokerName": f"b{number}", "brokerAddr": "h:1", "brokerId": "1"}
        taken = client.ask(1013, {**fields, "appliedBrokerId": "1", "registerCheckCode": "h:1;1"})
        assert (taken.code, client.ask(904, fields).code) == (0, 0)
        assert client.ask(1011, {**fields, "isCleanLivingBroker": "true"}).code == 0
    assert (len(script.node.sets), len(script.node.live), script.node.live._heard) == (0, 0, set())


def test_a_flood_of_sets_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqkit.controller.sets.decisions.SETS_MAX", 20)
    script = ControllerScript({})
    client = script.connect()
    codes = []
    for number in range(30):
        fields = {"clusterName": "C", "brokerName": f"b{number}"}
        assert client.ask(1012, fields).code == 0
        answer = client.ask(1013, {**fields, "appliedBrokerId": "1", "registerCheckCode": "h:1;1"})
        codes.append(answer.code)
    assert codes == [0] * 20 + [CONTROLLER_BROKER_ID_INVALID] * 10
    assert "at most 20 broker sets" in str(answer.remark)
    assert len(script.node.sets) == 20
    assert script.broker(1).client.ask(1004, {"brokerName": "b0"}).code == 0


def test_a_large_or_absurd_sync_state_set_is_refused() -> None:
    script = ControllerScript({})
    one, _ = script.pair()
    assert one.alter(list(range(1, 10_001)), 1, 2).code == 2003
    assert one.alter([2**63 - 1, -1], 1, 2).code == 2003
    assert one.alter([], 1, 2).code == 2013
    for body in (b"", b"[]", b"7", b'"x"', b'{"syncStateSet":["a"]}', b'{"syncStateSet":[1.5]}', b"\xff", b"[" * 9000):
        answer = one.client.ask(1001, {"brokerName": "broker-a", "masterBrokerId": "1", "masterEpoch": "1"}, body)
        assert answer.code in (SYSTEM_ERROR, 2013, 2001), body[:20]
    assert script.state() == (1, 1, [1, 2], 2)


def test_a_forged_heartbeat_is_bounded() -> None:
    """It neither lives for ever nor outlives the member's own next heartbeat."""
    script = ControllerScript({})
    one, two = script.pair()
    stranger = script.connect(peer="10.9.9.9:1")
    fields = {"clusterName": "C", "brokerName": "broker-a", "brokerAddr": two.address, "brokerId": "2"}
    huge = {"maxOffset": str(2**63 - 1), "epoch": str(2**31 - 1), "heartbeatTimeoutMills": str(2**31 - 1)}
    assert stranger.ask(904, {**fields, **huge}).code == 0
    member = script.node.live.get("broker-a", 2)
    assert member is not None
    assert member.timeout_ms == TIMEOUT_MOST_MS
    two.beat(1, 100)
    member = script.node.live.get("broker-a", 2)
    assert member is not None
    assert (member.offset_max, member.epoch) == (100, 1)
    assert one.elect().code == 0
    for wrong in ({"brokerId": "x"}, {"brokerId": str(2**63)}, {"brokerName": "", "brokerId": "1"}, {"brokerId": "-5"}):
        assert stranger.ask(904, {**fields, **wrong}).code in (SYSTEM_ERROR, 2010)
