"""Trace records as Java writes and reads them.

Source: `TraceDataEncoder.{encoderFromContextBean,decoderFromTraceDataString}`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.wire.trace import ConsumeCode, TraceMessageType, TraceRecord, TraceType, decode, encode

ID = "7F00000100002A9F0000000000000001"
#: copied by hand from `encoderFromContextBean`, field by field
PUB = (
    f"Pub\x011700000000000\x01DefaultRegion\x01PG\x01T\x01{ID}\x01TagA\x01k1 k2\x0110.0.0.1:10911"
    "\x015\x013\x010\x01AC1\x01true\x02"
)
BEFORE = f"SubBefore\x011700000000001\x01DefaultRegion\x01CG\x01REQ\x01{ID}\x012\x01null\x02"
AFTER = f"SubAfter\x01REQ\x01{ID}\x017\x01false\x01k1\x012\x011700000000009\x01CG\x02"
END = f"EndTransaction\x011\x01R\x01PG\x01T\x01{ID}\x01null\x01null\x01h:1\x011\x01tx\x01COMMIT_MESSAGE\x01true\x02"
RECALL = f"Recall\x011\x01R\x01PG\x01T\x01{ID}\x01true\x02"

RECORDS = {
    PUB: TraceRecord(
        TraceType.PUB,
        ID,
        time_ms=1700000000000,
        region_id="DefaultRegion",
        group="PG",
        topic="T",
        tags="TagA",
        keys="k1 k2",
        store_host="10.0.0.1:10911",
        body_length=5,
        cost_ms=3,
        message_type=TraceMessageType.NORMAL,
        offset_msg_id="AC1",
    ),
    BEFORE: TraceRecord(
        TraceType.SUB_BEFORE,
        ID,
        time_ms=1700000000001,
        region_id="DefaultRegion",
        group="CG",
        request_id="REQ",
        retry_times=2,
    ),
    AFTER: TraceRecord(
        TraceType.SUB_AFTER,
        ID,
        time_ms=1700000000009,
        group="CG",
        request_id="REQ",
        keys="k1",
        cost_ms=7,
        success=False,
        code=ConsumeCode.EXCEPTION,
    ),
    END: TraceRecord(
        TraceType.END_TRANSACTION,
        ID,
        time_ms=1,
        region_id="R",
        group="PG",
        topic="T",
        store_host="h:1",
        message_type=TraceMessageType.TRANSACTION_HALF,
        transaction_id="tx",
        transaction_state="COMMIT_MESSAGE",
        from_check=True,
    ),
    RECALL: TraceRecord(TraceType.RECALL, ID, time_ms=1, region_id="R", group="PG", topic="T"),
}


@pytest.mark.parametrize("text", RECORDS, ids=lambda text: text.partition("\x01")[0])
def test_a_record_is_the_text_that_java_writes(text):
    assert encode(RECORDS[text]) == text
    assert decode(text.encode()) == [RECORDS[text]]


def test_a_message_holds_several():
    assert decode((PUB + BEFORE + AFTER).encode()) == [RECORDS[PUB], RECORDS[BEFORE], RECORDS[AFTER]]


def test_no_field_at_the_end_is_empty():
    """Java's `split` drops empty last fields and its reader then fails on the missing one."""
    for kind in TraceType:
        last = encode(TraceRecord(kind, ID)).rstrip("\x02").rpartition("\x01")[2]
        assert last, kind


def test_forms_of_older_clients_are_read():
    old_pub = f"Pub\x011\x01R\x01PG\x01T\x01{ID}\x01t\x01k\x01h\x015\x013\x010\x01false\x02"
    (record,) = decode(old_pub.encode())
    assert (record.success, record.offset_msg_id) == (False, "")
    with_client_host = PUB.rstrip("\x02") + "\x0110.0.0.7\x02"
    assert decode(with_client_host.encode()) == [RECORDS[PUB]]
    for more in ("", "\x011"):
        (record,) = decode(f"SubAfter\x01REQ\x01{ID}\x017\x01true\x01k{more}\x02".encode())
        assert (record.cost_ms, record.keys, record.code) == (7, "k", 1 if more else 0)


@pytest.mark.parametrize(
    "text", ["", "\x02", "Pub\x02", "Pub\x01x\x02", "Other\x011\x02", PUB.replace("1700000000000", "soon")]
)
def test_texts_that_are_no_record_are_skipped(text):
    assert decode(text.encode()) == []
    assert decode((text.rstrip("\x02") + "\x02" + RECALL).encode()) == [RECORDS[RECALL]]


def test_separators_in_a_value_become_spaces():
    (record,) = decode(encode(TraceRecord(TraceType.RECALL, ID, topic="a\x01b\x02c")).encode())
    assert record.topic == "a b c"


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data):
    for record in decode(data):
        assert decode(encode(record).encode()) == [record]


@given(st.text(alphabet="Pub\x01\x02null1234567890SubAftertrue", max_size=300))
def test_any_text_is_read(text):
    decode(text.encode())
