"""`rmqkit message trace`: the rows of the records that clients write."""

from types import SimpleNamespace

from rmqkit.cli.data.trace import rows_of
from rmqkit.wire.trace import TraceMessageType, TraceRecord, TraceType, encode

ID = "7F00000100002A9F0000000000000001"


def test_a_transaction_is_its_half_and_its_outcomes():
    half = TraceRecord(
        TraceType.PUB, ID, time_ms=1, group="PG", topic="T", cost_ms=3, message_type=TraceMessageType.TRANSACTION_HALF
    )
    ends = [
        TraceRecord(TraceType.END_TRANSACTION, ID, time_ms=time_ms, group="PG", topic="T", transaction_state=state)
        for time_ms, state in ((9, "COMMIT_MESSAGE"), (2, "UNKNOW"))
    ]
    body = "".join(map(encode, [ends[0], half, ends[1]])).encode()
    rows = rows_of(ID, [SimpleNamespace(body=body, born_host="10.0.0.1:1")])
    shown = [(row["what"], row["outcome"], row["message_type"]) for row in rows]
    assert shown == [
        ("sent", "SUCCESS", "TRANSACTION_HALF"),
        ("transaction", "UNKNOW", "NORMAL"),
        ("transaction", "COMMIT_MESSAGE", "NORMAL"),
    ]
