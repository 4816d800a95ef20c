"""Messages of peers (60010): forged contents are refused, and the controller goes on."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from rmqkit.controller.contract import ENTRY_SIZE_MAX
from rmqkit.controller.node import Controller
from rmqkit.controller.raft.controller_log import make_raft
from rmqkit.controller.raft.messages import ORIGIN, LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.wire import encode_message, group_number
from rmqkit.controller.sets.events import (
    AnyEvent,
    NewAddress,
    NewMaster,
    NewReplica,
    NewSyncStateSet,
    Removal,
    decode_entry,
    encode_entry,
)
from rmqkit.controller.sets.table import BrokerSets
from tests.controller.conftest import NAME, ControllerScript
from tests.helpers.script import Command

IDS = ("n0", "n1", "n2")
FIRST = NewReplica(broker_name=NAME, cluster="c", broker_id=1, address="10.0.1.1:10911", check_code="x")
GOOD = encode_entry([FIRST])
MASTER = encode_entry([NewMaster(broker_name=NAME, broker_id=1)])
#: events that cannot follow GOOD, and what the refusal says
CONTRADICTIONS: Sequence[tuple[AnyEvent, str]] = (
    (FIRST, "the id 1 was given before"),
    (msgspec.structs.replace(FIRST, broker_id=0), "the id 0 was given before"),
    (msgspec.structs.replace(FIRST, broker_id=2**62 + 1), "Expected `int` <= 4611686018427387904"),
    (msgspec.structs.replace(FIRST, broker_id=2**62), "an id or epoch is above"),
    (msgspec.structs.replace(FIRST, broker_id=2, address="nowhere"), "is not an address"),
    (msgspec.structs.replace(FIRST, broker_name="other", cluster="a\nb"), "has control characters"),
    (NewAddress(broker_name=NAME, broker_id=7, address="10.0.1.7:1"), "the unknown member 7 has a new address"),
    (NewAddress(broker_name=NAME, broker_id=1, address="h:0"), "is not an address"),
    (NewAddress(broker_name="other", broker_id=1, address="10.0.1.1:1"), "'other' is unknown"),
    (NewSyncStateSet(broker_name=NAME, broker_ids=(1, 7)), "in sync are [1, 7], and its members are [1]"),
    (NewSyncStateSet(broker_name=NAME, broker_ids=(1, 1)), "in sync are [1, 1]"),
    (NewSyncStateSet(broker_name=NAME, broker_ids=(1,)), "it never had a master"),
    (NewMaster(broker_name=NAME, broker_id=7), "in sync are [7]"),
    (NewMaster(broker_name="other", broker_id=None), "'other' is unknown"),
    (Removal(broker_name="other", broker_ids=None), "'other' is unknown"),
)
FORGED = (b"no json", b"\xff\xfe", b"{}", b'{"format":2,"events":[]}', b'{"format":1,"events":[{"event":"other"}]}')


@pytest.fixture
def member() -> ControllerScript:
    peers = ";".join(f"{each}-10.0.0.{number}:9000" for number, each in enumerate(IDS, 9))
    return ControllerScript({"controllerDLegerPeers": peers}, make_log=make_raft)


def tell(
    member: ControllerScript,
    kind: MessageKind = MessageKind.APPEND,
    *,
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    position: Position | None = None,
    commit: int | None = None,
) -> Command:
    """Send a message of "n1", which claims to lead term 1, from a stranger's connection.

    Without `position`, its entries are the first ones. It says that all of them are committed.
    """
    if position is None:
        position = Position(1, 1) if kind is MessageKind.SNAPSHOT else ORIGIN
    made = [LogEntry(1, index, each) for index, each in enumerate(entries, position.index + 1)]
    committed = position.index + len(made) if commit is None else commit
    message = RaftMessage(kind, "n1", "n0", 1, position, ORIGIN, committed, 1, False, made, data)
    fields = {"group": "controllers", "sender": "n1", "receiver": "n0"}
    return member.connect().ask(60010, fields, encode_message(message, group_number(IDS)))


def last(member: ControllerScript) -> str:
    return member.node.log.facts()["last"]


@pytest.mark.parametrize("forged", FORGED)
def test_entries_that_cannot_be_read_are_refused(member: ControllerScript, forged: bytes) -> None:
    answer = tell(member, MessageKind.APPEND, entries=(GOOD, forged))
    assert (answer.code, answer.remark.startswith("CONTROLLER_PEER: entry of the controller's log")) == (1, True)
    assert last(member) == "0"
    assert tell(member, MessageKind.APPEND, entries=(GOOD,)).code == 0
    assert last(member) == "1"


@pytest.mark.parametrize("forged", FORGED)
def test_a_snapshot_that_cannot_be_read_is_refused(member: ControllerScript, forged: bytes) -> None:
    answer = tell(member, MessageKind.SNAPSHOT, data=forged.replace(b"events", b"sets"))
    assert (answer.code, "snapshot" in answer.remark) == (1, True)
    assert member.node.log.facts()["snapshot"] == "0"
    assert tell(member, MessageKind.SNAPSHOT, data=BrokerSets().snapshot()).code == 0
    assert member.node.log.facts()["snapshot"] == "1"


def test_a_refusal_is_logged(member: ControllerScript) -> None:
    tell(member, MessageKind.APPEND, entries=(b"no json",))
    (fields,) = [fields for _, event, fields in member.log.lines if event == "peer-message-refused"]
    assert fields["sender"] == "n1"


def problem(member: ControllerScript) -> str:
    """Return what `rmqkit controller status` shows (1005)."""
    return member.connect().ask(1005).ext.get("problem", "")


@pytest.mark.parametrize("is_committed", [True, False], ids=["behind a committed one", "behind one that is not committed"])
@pytest.mark.parametrize(("forged", "why"), CONTRADICTIONS)
def test_entries_that_contradict_the_table_are_refused(
    member: ControllerScript, forged: AnyEvent, why: str, is_committed: bool
) -> None:
    assert tell(member, entries=(GOOD,), commit=int(is_committed)).code == 0
    member.finish_disk()
    assert len(member.node.sets) == is_committed
    answer = tell(member, entries=(encode_entry([forged]),), position=Position(1, 1))
    assert (answer.code, why in answer.remark) == (1, True), answer.remark
    assert (last(member), member.node.log.facts()["refused"]) == ("1", "1")
    assert why in problem(member)
    assert tell(member, entries=(MASTER,), position=Position(1, 1)).code == 0
    member.finish_disk()
    assert member.node.sets.sets[NAME].master_id == 1
    member.advance(1_000)
    assert "refuses" not in problem(member), "it is over"


def test_an_entry_that_contradicts_another_one_of_its_message_is_refused(member: ControllerScript) -> None:
    assert tell(member, entries=(GOOD, MASTER, encode_entry([FIRST]))).code == 1
    assert tell(member, entries=(GOOD, encode_entry([FIRST, FIRST]))).code == 1
    assert last(member) == "0"


def test_an_entry_that_replaces_a_known_one_of_the_same_term_is_refused(member: ControllerScript) -> None:
    """The log would keep its own entry, and take those behind it, which follow another one."""
    other = encode_entry([msgspec.structs.replace(FIRST, broker_name="other")])
    after = encode_entry([NewMaster(broker_name="other", broker_id=1)])
    assert tell(member, entries=(GOOD,), commit=0).code == 0
    answer = tell(member, entries=(other, after))
    assert (answer.code, "another one here" in answer.remark) == (1, True)
    assert last(member) == "1"


def test_too_long_entries_are_refused(member: ControllerScript) -> None:
    assert tell(member, entries=(bytes(ENTRY_SIZE_MAX + 1),)).code == 1


def change(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda broker_set: broker_set.update(fields)


@pytest.mark.parametrize(
    "forge",
    [
        change(masterId=7),
        change(masterId=2**70),
        change(masterEpoch=-1),
        change(syncIds=[1, 7]),
        change(syncIds=[1]),
        change(nextId=1),
        change(brokerName=""),
        change(replicas={"1": {"address": "nowhere", "checkCode": "x"}}),
        change(replicas={"x": {"address": "h:1", "checkCode": "x"}}),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(
    member: ControllerScript, forge: Callable[[dict[str, Any]], None]
) -> None:
    sets = BrokerSets()
    sets.apply(decode_entry(GOOD))
    content = msgspec.json.decode(sets.snapshot())
    forge(content["sets"][0])
    answer = tell(member, MessageKind.SNAPSHOT, data=msgspec.json.encode(content))
    assert (answer.code, "snapshot" in answer.remark) == (1, True)
    assert member.node.log.facts()["snapshot"] == "0"
    assert tell(member, MessageKind.SNAPSHOT, data=sets.snapshot()).code == 0
    member.finish_disk()
    assert member.node.sets.sets[NAME].replicas[1].check_code == "x"


def test_a_snapshot_of_a_later_term_than_its_message_is_refused(member: ControllerScript) -> None:
    assert tell(member, MessageKind.SNAPSHOT, data=BrokerSets().snapshot(), position=Position(2, 1)).code == 1


def test_a_controller_whose_log_was_forged_leaves_the_group(
    member: ControllerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committed entry is not skipped: the controller would have another table than its group."""
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "check", lambda self, before, entries: None)  # as before the check existed
        assert tell(member, entries=(GOOD, encode_entry([FIRST]), MASTER), commit=1).code == 0
    member.finish_disk()
    assert (member.node.log.failed, member.node.sets.sets[NAME].master_id) == ("", None)
    assert tell(member, position=Position(1, 3), commit=3).code == 0
    reason = problem(member)
    assert reason.startswith("entry 2 is committed and cannot be applied: ")
    assert "the id 1 was given before" in reason
    assert "move the folder raft away" in reason
    assert member.node.sets.sets[NAME].master_id is None
    assert member.node.log.leadership.id == ""
    before = member.node.log.facts()
    assert tell(member, entries=(GOOD,), position=Position(1, 3)).code == 0, "it is silent"
    member.advance(60_000)
    assert member.node.log.facts() == before
    assert not member.node.stopped
