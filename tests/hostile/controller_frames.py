"""Generates requests that a controller must survive, from a seed: see `tests.hostile.frames`.

Besides the general mutations there are requests of brokers and administrators with values of any
size and kind, and messages of the log (60010): whole and well-formed, but of the wrong sender, of
any term and position, damaged, or in contradiction to what the receiver knows.
"""

import json
import random

from rmqkit.controller.raft.messages import LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.wire import encode_message, group_number
from tests.hostile.frames import BODIES, EVIL, Mutator, wrapped

CODES = (904, 1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013)
SETS = ("broker-a", "broker-b", "a/b", "a\nb", "", " ", "x" * 255, "x" * 256, "../c", "ä")
NUMBERS = ("0", "1", "2", "3", "-1", "99", "2147483647", "-2147483648", "9223372036854775807", "1e3", "x", "")
ADDRESSES = ("10.0.1.1:10911", "10.0.1.1", "h:0", ":1", "h:99999", "x" * 300 + ":1", "10.0.1.1:10911;17", "")
ID_LISTS = ("", "1", "1;2", ";;", "x", "9" * 30, ";".join(map(str, range(5000))))
DECISION_BODIES = (
    *BODIES,
    b'["broker-a","broker-b"]',
    b'["broker-a",1]',
    b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}',
    b'{"syncStateSet":[-1,0,9223372036854775807],"syncStateSetEpoch":1}',
    b'{"syncStateSet":[1,1,1],"syncStateSetEpoch":-1}',
    b'{"syncStateSet":["1"],"syncStateSetEpoch":"1"}',
    b'{"syncStateSet":null,"syncStateSetEpoch":null}',
    b'{"syncStateSet":{"1":1},"syncStateSetEpoch":[]}',
    json.dumps({"syncStateSet": list(range(10_000)), "syncStateSetEpoch": 1}).encode(),
    b"controllerStorePath=/x\n",
    b"rocketmqHome=/x\n",
    b"enableElectUncleanMaster=false\n",
)
PEERS = ("n0", "n1", "n2")
_TERMS = (0, 1, 1, 1, 2, 3, 2**62, 2**64 - 1)
_INDEXES = (0, 1, 1, 2, 3, 50, 2**62, 2**64 - 1)
_IDS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 0, 2**62, 2**70)
_EVENTS = ("newReplica", "newReplica", "newReplica", "newAddress", "newSyncStateSet", "newMaster", "newMaster", "removal")


def request(code: int, fields: dict[str, str], body: bytes = b"", *, flag: int = 0) -> bytes:
    header = {"code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": flag, "extFields": fields}
    return wrapped(json.dumps(header).encode(), body)


def peer_frame(content: bytes, sender: str = "n1", receiver: str = "n0", group: str = "controllers") -> bytes:
    """Return a request 60010 with a message of the log."""
    return request(60010, {"group": group, "sender": sender, "receiver": receiver}, content)


class ControllerMutator(Mutator):
    """The general mutations, and those of a controller's own requests."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ways += [self.decision] * 20 + [self.evil_decision] * 6 + [self.peer_message] * 10

    def decision(self) -> bytes:
        return request(self.random.choice(CODES), self._fields(), self._decision_body(), flag=self.random.choice((0, 0, 2)))

    def evil_decision(self) -> bytes:
        """Replace one value of a decision by JSON of another kind."""
        fields = self._fields()
        fields[self.random.choice(sorted(fields))] = "@@"
        data = request(self.random.choice(CODES), fields)[8:].replace(b'"@@"', self.random.choice(EVIL), 1)
        return wrapped(data, self._decision_body())

    def peer_message(self) -> bytes:
        pick = self.random
        content = encode_message(raft_message(pick), group_number(PEERS))
        if pick.random() < 0.1:
            content = content[: pick.randrange(len(content))]
        elif pick.random() < 0.1:
            at = pick.randrange(len(content))
            content = content[:at] + bytes((content[at] ^ 1 << pick.randrange(8),)) + content[at + 1 :]
        return peer_frame(content, pick.choice((*PEERS, "n1", "n2", "n9", "")), pick.choice(("n0", "n0", "n0", "n1")))

    def _decision_body(self) -> bytes:
        return self.random.choice(DECISION_BODIES)

    def _fields(self) -> dict[str, str]:
        pick = self.random
        fields = {
            "clusterName": pick.choice(("C", "C", "", "c" * 300)),
            "brokerName": pick.choice((*SETS, *["broker-a"] * 10)),
            "designateElect": pick.choice(("true", "false", "maybe")),
            "isCleanLivingBroker": pick.choice(("true", "false")),
            "brokerControllerIdsToClean": pick.choice(
                ("", "1", "1;2", ";;", "x", "9" * 30, ";".join(map(str, range(5000))))
            ),
            "registerCheckCode": pick.choice(ADDRESSES),
            "brokerAddress": pick.choice(ADDRESSES),
            "brokerAddr": pick.choice(ADDRESSES),
        }
        numbers = ("brokerId", "masterBrokerId", "masterEpoch", "appliedBrokerId", "epoch", "maxOffset", "confirmOffset")
        for name in (*numbers, "heartbeatTimeoutMills", "electionPriority"):
            fields[name] = pick.choice((*NUMBERS, "1", "1", "2"))
        for name in pick.sample(sorted(fields), pick.choice((0, 0, 0, 1, 3))):
            del fields[name]
        return fields


def log_entry(pick: random.Random) -> bytes:
    """Return the events of a decision, which may contradict any table; b"" for no decision."""
    events = [
        {
            "event": pick.choice(_EVENTS),
            "brokerName": pick.choice((*["broker-a"] * 6, "broker-b", "a\nb")),
            "cluster": "C",
            "brokerId": pick.choice(_IDS),
            "brokerIds": pick.sample(_IDS, pick.choice((0, 1, 2))),
            "address": pick.choice((*["10.0.1.1:10911"] * 30, *ADDRESSES)),
            "checkCode": "x",
        }
        for _ in range(pick.choice((0, 1, 1, 1, 2)))
    ]
    return json.dumps({"format": 1, "events": events}).encode() if events else b""


def log_snapshot(pick: random.Random) -> bytes:
    """Return a table, which may contradict itself."""
    found = {"cluster": "C", "brokerName": "broker-a", "nextId": pick.choice(_IDS), "masterId": pick.choice((None, *_IDS))}
    replicas = {str(each): {"address": pick.choice(ADDRESSES), "checkCode": "x"} for each in pick.sample(_IDS, 2)}
    more = {"replicas": replicas, "masterEpoch": pick.choice(_IDS), "syncIds": pick.sample(_IDS, 2), "syncEpoch": 1}
    return json.dumps({"format": 1, "sets": pick.choice(([], [{**found, **more}]))}).encode()


def raft_message(pick: random.Random) -> RaftMessage:
    """Return a well-formed message of n1, with numbers as no honest peer sends them together."""
    kind = pick.choice(tuple(MessageKind))
    term = pick.choice(_TERMS)
    position = Position(min(pick.choice(_TERMS), term), pick.choice(_INDEXES))
    entries: tuple[LogEntry, ...] = ()
    if kind is MessageKind.APPEND and position.index < 100:
        entries = tuple(LogEntry(term, position.index + 1 + at, log_entry(pick)) for at in range(pick.choice((0, 1, 3))))
    if kind is MessageKind.SNAPSHOT:
        position = Position(position.term, max(1, position.index))
    return RaftMessage(
        kind,
        "n1",
        "n0",
        term,
        position,
        Position(pick.choice(_TERMS), pick.choice(_INDEXES)),
        pick.choice(_INDEXES),
        pick.choice(_INDEXES),
        pick.random() < 0.3,
        entries,
        log_snapshot(pick) if kind is MessageKind.SNAPSHOT else b"",
    )
