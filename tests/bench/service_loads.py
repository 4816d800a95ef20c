"""The loads of timers and transactions for `inprocess.py`.

    timer        64 sends of 128 B per turn that are due in an hour, until all are in the timer
                 index: the cost of an accepted timer
    due          timers of 128 B that are due in one second: the cost of a delivered one
    transaction  64 half messages of 1 KiB in one turn, their commits in the next one

The properties are in the order in which Java's hash map returns them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.topic_names import HALF_TOPIC

if TYPE_CHECKING:
    from tests.bench.inprocess import InProcess

TURNS, PER_TURN = 256, 64
#: turns without input after the last timer, in which the index catches up
REST_TURNS = 64
#: from the start of the run of `due` to its due time. `run` lets 10 s pass before
DUE_MS = 1_000
IDLE_MS = 11_000
DUE_TURNS = 300
_ONEWAY = 2


def _unique(number: int) -> str:
    return f"7F000001{number >> 16:016X}{number & 0xFFFF:08X}"


def _timers(server: "InProcess", deliver_ms: int) -> list[bytes]:
    def sent(number: int) -> str:
        return f"TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01{_unique(number)}\x02WAIT\x01true\x02"

    return server.sends(TURNS, PER_TURN, 128, sent=sent)


def make_timers(server: "InProcess") -> list[bytes]:
    return _timers(server, server.now_ms + 3_600_000) + [b""] * REST_TURNS


def make_due(server: "InProcess") -> list[bytes]:
    """Store the timers now; the turns have no input."""
    server.align()
    for data in _timers(server, server.now_ms + IDLE_MS + DUE_MS):
        server.receive(data)
    return [b""] * DUE_TURNS


def make_transactions(server: "InProcess") -> list[bytes | Callable[[], bytes]]:
    """Each turn of commits reads from the store where the halves of the turn before are."""

    def sent(number: int) -> str:
        group = "PGROUP\x01bench_producer\x02"
        return f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{_unique(number)}\x02WAIT\x01true\x02{group}"

    def commits() -> bytes:
        store = server.broker.store
        first = store.queue_range(HALF_TOPIC, 0).offset_max - PER_TURN
        entries = store.entries(HALF_TOPIC, 0, first, PER_TURN)
        return b"".join(_commit(server, each.queue_offset, each.phy_offset) for each in entries)

    turns: list[bytes | Callable[[], bytes]] = []
    for halves in server.sends(TURNS // 2, PER_TURN, 1024, sent=sent, sys_flag=MessageSysFlag.TRANSACTION_PREPARED):
        turns += [halves, commits]
    return turns


def _commit(server: "InProcess", half_offset: int, phy_offset: int) -> bytes:
    fields = {
        "topic": "BenchmarkTest", "producerGroup": "bench_producer", "tranStateTableOffset": str(half_offset),
        "commitLogOffset": str(phy_offset), "commitOrRollback": str(MessageSysFlag.TRANSACTION_COMMIT),
        "fromTransactionCheck": "false", "msgId": _unique(server.number), "transactionId": _unique(server.number),
        "bname": "broker-a",
    }  # fmt: skip
    return server.request(RequestCode.END_TRANSACTION, fields, flag=_ONEWAY)
