"""Messages of peers (60010): forged contents are refused, and the controller goes on."""

from collections.abc import Sequence

import pytest

from rmqkit.controller.raft.controller_log import make_raft
from rmqkit.controller.raft.messages import ORIGIN, LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.wire import encode_message, group_number
from rmqkit.controller.sets.events import NewReplica, encode_entry
from rmqkit.controller.sets.table import BrokerSets
from tests.controller.conftest import NAME, ControllerScript
from tests.helpers.script import Command

IDS = ("n0", "n1", "n2")
GOOD = encode_entry([NewReplica(broker_name=NAME, cluster="c", broker_id=1, address="10.0.1.1:10911", check_code="x")])
FORGED = (b"no json", b"\xff\xfe", b"{}", b'{"format":2,"events":[]}', b'{"format":1,"events":[{"event":"other"}]}')


@pytest.fixture
def member() -> ControllerScript:
    peers = ";".join(f"{each}-10.0.0.{number}:9000" for number, each in enumerate(IDS, 9))
    return ControllerScript({"controllerDLegerPeers": peers}, make_log=make_raft)


def tell(member: ControllerScript, kind: MessageKind, *, entries: Sequence[bytes] = (), data: bytes = b"") -> Command:
    """Send a message of "n1", which claims to lead term 1, from a stranger's connection."""
    made = [LogEntry(1, index, each) for index, each in enumerate(entries, 1)]
    position = Position(1, 1) if kind is MessageKind.SNAPSHOT else ORIGIN
    message = RaftMessage(kind, "n1", "n0", 1, position, ORIGIN, len(made), 1, False, made, data)
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
