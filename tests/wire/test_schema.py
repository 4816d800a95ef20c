import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.schema import Ext, Int32, Int64, from_ext, to_ext
from rmqkit.wire.schemas.offsets import GetMaxOffsetRequest, QueryConsumerOffsetRequest
from rmqkit.wire.schemas.pull import PullMessageResponse


class Sample(Ext, kw_only=True):
    topic: str
    queue_id: Int32
    big: Int64 | None = None
    force: bool | None = None
    order: bool = False
    note: str | None = None


def test_every_value_is_written_as_text_and_none_is_left_out() -> None:
    assert to_ext(Sample(topic="T", queue_id=-1, force=True)) == {
        "topic": "T",
        "queueId": "-1",
        "force": "true",
        "order": "false",
    }


@pytest.mark.parametrize(
    ("given_fields", "expected"),
    [
        ({"topic": "T", "queueId": "4"}, Sample(topic="T", queue_id=4)),
        # ali-ons and the C++ client send numbers and bools
        ({"topic": "T", "queueId": 4, "force": True, "order": True}, Sample(topic="T", queue_id=4, force=True, order=True)),
        ({"topic": 5, "queueId": "4", "note": False}, Sample(topic="5", queue_id=4, note="false")),
        ({"topic": "T", "queueId": " +4 ", "force": "TRUE"}, Sample(topic="T", queue_id=4, force=True)),
        # Boolean.parseBoolean: anything else is false
        ({"topic": "T", "queueId": "4", "force": "yes", "order": ""}, Sample(topic="T", queue_id=4, force=False)),
        ({"topic": "T", "queueId": "4", "big": "", "unknown": "x"}, Sample(topic="T", queue_id=4)),
        ({"topic": "null", "queueId": "4", "note": None}, Sample(topic="null", queue_id=4)),
        ({"topic": {"a": 1}, "queueId": "4"}, Sample(topic='{"a":1}', queue_id=4)),
    ],
)
def test_fields_are_read_whatever_their_json_type(given_fields: dict[str, object], expected: Sample) -> None:
    assert from_ext(Sample, given_fields) == expected


@pytest.mark.parametrize(
    ("given_fields", "field"),
    [
        ({"queueId": "4"}, "topic"),
        ({"topic": "T"}, "queueId"),
        ({"topic": "T", "queueId": ""}, "queueId"),
        ({"topic": "T", "queueId": "four"}, "queueId"),
        ({"topic": "T", "queueId": str(2**31)}, "queueId"),
        ({"topic": "T", "queueId": "1", "big": str(2**63)}, "big"),
        ({"topic": "T", "queueId": [1]}, "queueId"),
    ],
)
def test_an_unreadable_field_is_named_with_its_schema(given_fields: dict[str, object], field: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"Sample: .*{field}"):
        from_ext(Sample, given_fields)


def test_java_defaults_hold_for_absent_fields() -> None:
    assert from_ext(GetMaxOffsetRequest, {"topic": "T", "queueId": "0"}).committed is True
    asked = from_ext(QueryConsumerOffsetRequest, {"consumerGroup": "G", "topic": "T", "queueId": "0"})
    assert asked.set_zero_if_not_found is None


def test_pull_answer_carries_the_four_offsets_as_text() -> None:
    answer = PullMessageResponse(suggest_which_broker_id=0, next_begin_offset=7, min_offset=0, max_offset=2**40)
    assert to_ext(answer) == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "1099511627776",
    }


@given(
    st.builds(
        Sample,
        topic=st.text(),
        queue_id=st.integers(-(2**31), 2**31 - 1),
        big=st.none() | st.integers(-(2**63), 2**63 - 1),
        force=st.none() | st.booleans(),
        order=st.booleans(),
        note=st.none() | st.text(),
    )
)
def test_what_is_written_reads_back(sample: Sample) -> None:
    assert from_ext(Sample, to_ext(sample)) == sample


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["topic", "queueId", "big", "force", "order", "note", "x"]), _JSON))
def test_any_json_gives_a_value_or_the_remote_error(fields: dict[str, object]) -> None:
    try:
        read = from_ext(Sample, fields)
    except RemoteProtocolError:
        return
    assert from_ext(Sample, to_ext(read)) == read
