import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import QueueData
from rmqkit.wire.fastjson import MessageQueue, dumps, load_as, loads, pretty, read_queue

QUEUE_KEY = '{"brokerName":"b","queueId":1,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        (' {"a" : [1, 2.5, true, null, "x"]} ', {"a": [1, 2.5, True, None, "x"]}),
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ('{ 0 : "a" , -10 : {2:3} }', {"0": "a", "-10": {"2": 3}}),
        ('{"t":{\n\t0:12,\n\t1:7\n}}', {"t": {"0": 12, "1": 7}}),
        ('{"a":"{0:1}","b":{0:"1:2, 3:4"}}', {"a": "{0:1}", "b": {"0": "1:2, 3:4"}}),
        ('{"a\\"{0:":1,2:3}', {'a"{0:': 1, "2": 3}),
        ('{"t":{' + QUEUE_KEY + ":6}}", {"t": {QUEUE_KEY: 6}}),
        ('{"t":{ { "brokerName" : "b c" } : 6 , {"x":1}:{}}}', {"t": {'{"brokerName":"b c"}': 6, '{"x":1}': {}}}),
        ('{{"a":"}:{\\"\\\\"}:1}', {'{"a":"}:{\\"\\\\"}': 1}),
        ('{"@type":"java.util.HashMap","a":1}', {"@type": "java.util.HashMap", "a": 1}),
        ('{"é":"中😀"}', {"é": "中😀"}),
        ("[{0:1},{1:2}]", [{"0": 1}, {"1": 2}]),
        ('"x"', "x"),
    ],
)
def test_reads_json_and_the_two_forms_of_keys_that_fastjson_writes(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a":NaN}',
        '{"a":Infinity}',
        "{'a':1}",
        "{a:1}",
        '{"a":1,}',
        '{"a" 1}',
        "{1.5:2}",
        "{[1]:2}",
        '{{"a":{"b":1}}:2}',
        "{{}:1",
        '{"a":1} x',
        "[" * 100000,
        '{"a":' * 100000,
        "{{" * 100000,
        b'{"a\xff":1}',
        b"\xff\xfe",
        '"\\ud800"',
    ],
)
def test_anything_else_is_the_remote_error(text: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_more_than_the_limit_is_refused_before_it_is_read() -> None:
    assert loads('"xxxxxxxx"', size_max=10) == "xxxxxxxx"
    with pytest.raises(RemoteProtocolError, match="11 bytes, more than 10"):
        loads('"xxxxxxxxx"', size_max=10)


@pytest.mark.parametrize(
    "text", ['"' + '\\"' * 100_000, '{"x' + '\\"' * 100_000, "{}" + " " * 200_000 + "{}", "{1 " * 50_000]
)
def test_hostile_text_is_scanned_in_linear_steps(text: str) -> None:
    # In quadratic time these would take minutes.
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_typed_reading_takes_numbers_as_text_and_null_as_absent() -> None:
    read = load_as(QueueData, '{"brokerName":"b","perm":"6","readQueueNums":null,"unknown":{0:1}}')
    assert read == QueueData(broker_name="b", perm=6)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"perm":6}', "QueueData: .*brokerName"),
        ('{"brokerName":"b","perm":"x"}', "QueueData: .*perm"),
        ("[]", "QueueData"),
    ],
)
def test_typed_reading_names_the_type_and_the_field(text: str, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        load_as(QueueData, text)


def test_a_key_becomes_a_queue_in_its_raw_and_its_quoted_form() -> None:
    queue = MessageQueue("T", "b", 1)
    for text in ('{"t":{' + QUEUE_KEY + ":6}}", json.dumps({"t": {QUEUE_KEY: 6}})):
        assert load_as(dict[str, dict[MessageQueue, int]], text, has_queues=True) == {"t": {queue: 6}}
    assert read_queue('{"topic":"T", "queueId":"1","brokerName":"b"}') == queue
    for bad in ("x", "{}", '{"topic":"T","queueId":1}', '{"topic":"T","queueId":"x","brokerName":"b"}'):
        with pytest.raises(RemoteProtocolError):
            read_queue(bad)


def test_queues_sort_as_in_java() -> None:
    queues = [MessageQueue("a", "z", 10), MessageQueue("a", "z", 2), MessageQueue("a", "b", 5), MessageQueue("A", "z", 1)]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]


class Sample(msgspec.Struct, rename="camel"):
    HAS_QUEUES = True
    by_queue: dict[MessageQueue, int]
    queues: list[MessageQueue]
    note: str | None = None


def test_writes_compact_without_none() -> None:
    assert dumps({"b": 1, "a": [None, 1.0, True, "x:null"], "n": None}) == b'{"b":1,"a":[null,1.0,true,"x:null"]}'
    assert dumps({1: {"n": None}, 0: []}) == b'{"0":[],"1":{}}'
    assert dumps({10: 1, 2: 2}, unquoted_int_keys=True) == b"{2:2,10:1}"
    # fastjson escapes in the same way; é and / stay
    assert dumps({"é": 'a"\\/\n\t\x01'}) == '{"é":"a\\"\\\\/\\n\\t\\u0001"}'.encode()


class Optional(msgspec.Struct, rename="camel"):
    first_note: str | None = None
    text: str = ""
    inner: "Optional | None" = None
    last_note: str | None = None


class Alone(msgspec.Struct):
    note: str | None = None


def test_a_field_that_is_none_is_left_out_wherever_it_stands() -> None:
    assert dumps(Optional()) == b'{"text":""}'
    assert dumps(Optional(last_note="x")) == b'{"text":"","lastNote":"x"}'
    assert dumps(Optional(first_note="x")) == b'{"firstNote":"x","text":""}'
    assert dumps(Optional(inner=Optional(last_note="x"))) == b'{"text":"","inner":{"text":"","lastNote":"x"}}'
    assert dumps(Alone()) == b"{}"
    inner = Optional(first_note="y", inner=Optional(text="z"))
    assert dumps(Optional(inner=inner)) == b'{"text":"","inner":{"firstNote":"y","text":"","inner":{"text":"z"}}}'
    # A text that looks like such a field stays.
    text = '"firstNote":null,"lastNote":null}'
    assert msgspec.json.decode(dumps(Optional(text=text, last_note=text))) == {"text": text, "lastNote": text}


def test_writes_queues_raw_as_keys_and_as_items() -> None:
    sample = Sample({MessageQueue("T", 'b"', 2): 6, MessageQueue("T", "a", 1): 7}, [MessageQueue("T", "b", 1)])
    assert dumps(sample).decode() == (
        '{"byQueue":{{"brokerName":"a","queueId":1,"topic":"T"}:7,{"brokerName":"b\\"","queueId":2,"topic":"T"}:6},'
        '"queues":[{"brokerName":"b","queueId":1,"topic":"T"}]}'
    )


def test_pretty_is_tab_indented_with_bare_int_keys() -> None:
    assert pretty({"t": {1: 2, 0: {}}, "l": [1, []], "n": None, "s": "x"}) == (
        '{\n\t"t":{\n\t\t0:{},\n\t\t1:2\n\t},\n\t"l":[\n\t\t1,\n\t\t[]\n\t],\n\t"s":"x"\n}'
    )


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['{"', "}:", "0:", '{0:"', "\\", '"']
)
leaves = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(text, inner, max_size=3)
        | st.dictionaries(st.integers(-(2**31), 2**31), inner, max_size=3)
    ),
    max_leaves=8,
)


def with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right)
    return bool(left == right)


@given(values)
def test_every_form_written_reads_back(value: Any) -> None:
    expected = with_text_keys(value)
    assert same(loads(dumps(value)), expected)
    assert same(loads(dumps(value, unquoted_int_keys=True)), expected)
    assert same(loads(pretty(value)), expected)
    assert same(json.loads(dumps(value)), expected)


queues = st.builds(MessageQueue, text, text, st.integers(0, 2**31 - 1))


@given(st.dictionaries(queues, st.integers(-(2**63), 2**63 - 1), max_size=4), st.lists(queues, max_size=3))
def test_maps_keyed_by_queues_read_back(by_queue: dict[MessageQueue, int], items: list[MessageQueue]) -> None:
    sample = Sample(by_queue, items)
    for written in (dumps(sample), pretty(sample)):
        assert load_as(Sample, written, has_queues=True) == sample


@given(
    st.lists(
        st.sampled_from(["{", "}", "[", "]", ":", ",", '"', "\\", "0", "-1", "a", " ", "\n", "null", '"k"']), max_size=25
    )
)
def test_any_text_gives_a_value_or_the_remote_error(pieces: list[str]) -> None:
    joined = "".join(pieces)
    try:
        value = loads(joined)
    except RemoteProtocolError:
        return
    try:
        assert value == json.loads(joined)
    except json.JSONDecodeError:
        assert fastjson.to_strict(joined.encode()) != joined.encode()


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_the_remote_error(data: bytes) -> None:
    try:
        loads(data)
    except RemoteProtocolError:
        pass


def test_a_text_with_quoted_keys_is_not_scanned_for_other_ones(monkeypatch):
    monkeypatch.setattr(fastjson, "to_strict", lambda data: pytest.fail("scanned"))
    text = b'[{"brokerName":"b","queueId":1,"topic":"T"}]'
    assert fastjson.load_as(list[fastjson.MessageQueue], text, has_queues=True) == [("T", "b", 1)]
