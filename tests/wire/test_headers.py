"""Headers in both forms. Source: `RemotingCommand.java`, `RocketMQSerializable.java`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.codes import VERSION, RequestCode
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, HEADER_SIZE_MAX, Frame, FrameBuffer, frame_head
from rmqkit.wire.remoting.headers import (
    BadHeader,
    RequestDecoder,
    decode_head,
    encode_answer,
    encode_request,
    encode_response,
    peek_code,
)
from rmqkit.wire.remoting.pull_header import read_pull
from rmqkit.wire.remoting.send_header import read_send
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.offsets import GetMaxOffsetRequest
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2

JAVA = (
    b'{"code":30,"extFields":{"queueId":"3","committed":"true","topic":"T"},"flag":0,"language":"JAVA",'
    b'"opaque":17,"serializeTypeCurrentRPC":"JSON","version":479}'
)
DECODER = RequestDecoder(GetMaxOffsetRequest)


def test_a_request_as_java_writes_it():
    assert peek_code(Frame(0, JAVA, b"")) == 30
    head = DECODER.decode(Frame(0, JAVA, b""))
    assert (head.code, head.opaque, head.flag, head.version, head.language) == (30, 17, 0, 479, "JAVA")
    assert head.ext == GetMaxOffsetRequest(topic="T", queue_id=3, committed=True)


def test_our_headers_are_what_java_writes():
    """Sorted keys, one line, nulls left out; all extFields are strings."""
    assert encode_request(105, 0, {"topic": "T"}) == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
    )
    assert encode_request(34, 5, oneway=True) == (
        b'{"code":34,"flag":2,"language":"PYTHON","opaque":5,"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
    )
    assert encode_response(1, 9, {}, "né") == (
        '{"code":1,"flag":1,"language":"PYTHON","opaque":9,"remark":"né","serializeTypeCurrentRPC":"JSON",'
        f'"version":{VERSION}}}'.encode()
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"queueId": 3, "topic": "T", "committed": True},
        {"topic": "T", "queueId": "3", "committed": "TRUE", "somethingNew": "x", "Signature": "y"},
        {"queueId": " 3", "topic": "T", "committed": "true"},
    ],
)
def test_other_clients_ways_of_writing_mean_the_same(fields):
    """ali-ons and C++ send numbers and bools in extFields; hooks add fields."""
    header = json.dumps({"extFields": fields, "opaque": 4, "code": 30, "language": 9}).encode()
    head = DECODER.decode(Frame(0, header, b""))
    assert head.ext == GetMaxOffsetRequest(topic="T", queue_id=3, committed=True)
    assert head.opaque == 4


def test_a_missing_or_wrong_field_can_be_answered():
    for fields, name in (({"topic": "T"}, "queueId"), ({"topic": "T", "queueId": "three"}, "queueId")):
        header = json.dumps({"code": 30, "extFields": fields, "opaque": 77}).encode()
        with pytest.raises(BadHeader, match=name) as caught:
            DECODER.decode(Frame(0, header, b""))
        assert caught.value.head.opaque == 77


def test_the_binary_form():
    """code i16, language i8, version i16, opaque i32, flag i32, remark, extFields.

    Source: `RocketMQSerializable.rocketMQProtocolEncode`.
    """
    golden = bytes.fromhex("001e 03 01df 00000011 00000000 00000000")
    golden += (12).to_bytes(4, "big") + b"\x00\x05topic\x00\x00\x00\x01T"
    assert encode_request(30, 17, {"topic": "T"}, codec=CODEC_ROCKETMQ) == golden
    head = decode_head(Frame(CODEC_ROCKETMQ, golden, b""))
    assert (head.code, head.opaque, head.version, head.ext_fields) == (30, 17, 479, {"topic": "T"})
    typed = RequestDecoder(PullMessageRequest)
    with pytest.raises(BadHeader):
        typed.decode(Frame(CODEC_ROCKETMQ, golden, b""))


def test_an_answer_has_the_form_of_its_request():
    """ali-ons and the C++ client read and write only JSON.

    `test_golden.py` has the answers of Apache 5.x.
    """
    assert encode_response(1, 9, {}, "n\u00e9", CODEC_ROCKETMQ) == (
        bytes.fromhex("0001 03 01df 00000009 00000001 00000003") + b"n\xc3\xa9" + bytes(4)
    )
    header = encode_response(0, 9, {"offset": "7"}, None, CODEC_ROCKETMQ)
    assert header == bytes.fromhex("0000 03 01df 00000009 00000001 00000000 0000000d") + b"\0\6offset\0\0\0\0017"
    assert encode_answer(0, 9, {"offset": "7"}, None, 5, CODEC_ROCKETMQ) == frame_head(header, 5, CODEC_ROCKETMQ)


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_ROCKETMQ])
def test_answers_of_ours_are_read_in_both_forms(codec):
    for code, ext, remark in ((0, {"a": "b"}, None), (17, {}, "no such topic"), (-1, {"\u00e9": "x" * 70_000}, "\u00e9")):
        data = encode_answer(code, 2**31 - 1, ext, remark, 2, codec) + b"ok"
        (frame,) = FrameBuffer().feed(data)
        head = decode_head(frame)
        assert (frame.codec, frame.body) == (codec, b"ok")
        assert (head.code, head.opaque, head.flag) == (code, 2**31 - 1, 1)
        assert (head.ext_fields or {}, head.remark) == (ext, remark)


@pytest.mark.parametrize(
    ("code", "ext"),
    [(40_000, {"a": "b"}), (-(2**31) + 1, None), (0, {"n" * 32_768: "v"}), (0, {"é" * 20_000: "v"}), (0, {"a": ""})],
)
def test_what_the_binary_form_has_no_room_for_is_said_in_json(code, ext):
    (frame,) = FrameBuffer().feed(encode_answer(code, 3, ext, "why", 0, CODEC_ROCKETMQ))
    head = decode_head(frame)
    assert (frame.codec, head.code, head.opaque, head.ext_fields, head.remark) == (CODEC_JSON, code, 3, ext, "why")


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_ROCKETMQ])
def test_an_answer_header_too_large_for_a_frame_becomes_an_error(codec):
    """Its size would overflow into the byte that marks the header's form.

    A client that sends such a response could break another client's connection.
    """
    size = HEADER_SIZE_MAX if codec else HEADER_SIZE_MAX // 6
    (frame,) = FrameBuffer().feed(encode_answer(0, 3, None, "\x01" * size, 0, codec))
    head = decode_head(frame)
    assert (frame.codec, head.code, head.opaque) == (codec, 1, 3)
    assert "bytes, more than" in (head.remark or "")


@given(
    st.integers(0, 32767),
    st.integers(0, 2**31 - 1),
    st.dictionaries(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=50), max_size=5),
    st.sampled_from([0, 1]),
)
def test_round_trip_in_both_forms(code, opaque, ext, codec):
    head = decode_head(Frame(codec, encode_request(code, opaque, ext, codec=codec), b""))
    assert (head.code, head.opaque, head.ext_fields or {}) == (code, opaque, ext)


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 7]))
def test_garbage_raises_the_remote_error_only(data, codec):
    try:
        decode_head(Frame(codec, data, b""))
        DECODER.decode(Frame(codec, data, b""))
    except (RemoteProtocolError, BadHeader):
        pass


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))
)
def test_json_of_any_shape_raises_the_remote_error_only(value):
    for shape in (value, {"code": value}, {"code": 30, "extFields": value}, {"code": 30, "extFields": {"queueId": value}}):
        try:
            DECODER.decode(Frame(0, json.dumps(shape).encode(), b""))
        except (RemoteProtocolError, BadHeader):
            pass


def test_peeking_a_code_gives_up_on_anything_odd():
    assert RequestCode(peek_code(Frame(0, JAVA, b""))) is RequestCode.GET_MAX_OFFSET
    for header in (b"", b"{}", b'{"code":"30",', b'{"code":30}', b'{"flag":0,"code":30,', b'{"code":x,'):
        assert peek_code(Frame(0, header, b"")) == -1
    assert peek_code(Frame(CODEC_ROCKETMQ, b"\x01\x36\x00", b"")) == 310
    assert peek_code(Frame(CODEC_ROCKETMQ, b"\x01", b"")) == -1


NUMBER = st.one_of(st.integers(0, 99), st.integers(-(2**63), 2**63)).map(str) | st.sampled_from(
    ["", "+1", "1_0", " 2", "x"]
)
PROPERTIES = st.none() | st.text(max_size=30)
SEND_FIELDS = st.fixed_dictionaries(
    {"a": st.text(min_size=1, max_size=8), "b": st.text(min_size=1, max_size=8), "c": st.just("TBW102"), "d": NUMBER},
) | st.just({"a": "PG", "b": "T", "c": "TBW102", "d": "4"})


@given(SEND_FIELDS, NUMBER, NUMBER, NUMBER, NUMBER, PROPERTIES, st.booleans(), st.permutations("jkmn"))
def test_binary_sends_read_fast_are_read_the_same(first, e, f, g, h, properties, with_rest, rest):
    """`wire/remoting/send_header.py` returns what the general decoder returns, or None."""
    fields = {**first, "e": e, "f": f, "g": g, "h": h}
    if properties is not None:
        fields["i"] = properties
    if with_rest:
        values = {"j": "3", "k": "false", "m": "true", "n": "broker-a"}
        fields |= {key: values[key] for key in rest}
    header = encode_request(310, 9, fields, codec=CODEC_ROCKETMQ)
    fast = read_send(header)
    if fast is not None:
        general = from_ext(SendMessageRequestV2, decode_head(Frame(CODEC_ROCKETMQ, header, b"")).ext_fields)
        assert fast.ext == general
        assert (fast.code, fast.opaque, fast.flag, fast.version) == (310, 9, 0, VERSION)


def test_the_ordinary_binary_send_is_read_fast():
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1795273018160", "h": "0"}
    fields |= {"i": "UNIQ_KEY\x01ABC\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a"}
    header = encode_request(310, 1, fields, codec=CODEC_ROCKETMQ)
    for _ in range(2):
        fast = read_send(header)
        assert fast is not None
        assert fast.ext.queue_id == 3
        assert fast.ext.properties == fields["i"]


PULL = {"consumerGroup": "CG", "topic": "T", "queueId": "3", "queueOffset": "1234", "maxMsgNums": "32", "sysFlag": "7"}
PULL |= {"commitOffset": "1200", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1760000000000"}
PULL |= {"expressionType": "TAG", "bname": "broker-a"}


@given(NUMBER, NUMBER, NUMBER, st.text(max_size=8), st.permutations(list(PULL)[6:]), st.booleans())
def test_binary_pulls_read_fast_are_read_the_same(queue_id, offset, commit, group, rest, plain):
    """`wire/remoting/pull_header.py` returns what the general decoder returns, or None."""
    fields = PULL | {"queueId": queue_id, "queueOffset": offset, "commitOffset": commit, "consumerGroup": group}
    names = list(PULL) if plain else [*list(PULL)[:6], *rest]
    header = encode_request(11, 9, {name: fields[name] for name in names}, codec=CODEC_ROCKETMQ)
    for _ in range(2):
        fast = read_pull(header)
        if fast is not None:
            general = from_ext(PullMessageRequest, decode_head(Frame(CODEC_ROCKETMQ, header, b"")).ext_fields)
            assert fast.ext == general
            assert (fast.code, fast.opaque, fast.flag, fast.version) == (11, 9, 0, VERSION)


def test_the_ordinary_binary_pull_is_read_fast():
    for offset, commit in ((0, 0), (1234, 1200), (10**17, 5)):
        header = encode_request(
            11, 9, PULL | {"queueOffset": str(offset), "commitOffset": str(commit)}, codec=CODEC_ROCKETMQ
        )
        fast = read_pull(header)
        assert fast is not None
        assert (fast.ext.queue_offset, fast.ext.commit_offset, fast.ext.sub_version) == (offset, commit, 1760000000000)


def test_names_that_look_like_fields_do_not_mislead_the_fast_way():
    evil = "\0\x0bqueueOffset\0\0\0\x017\0\x0ccommitOffset\0\0\0\x018"
    for name in ("consumerGroup", "topic", "subscription"):
        header = encode_request(11, 9, PULL | {name: evil}, codec=CODEC_ROCKETMQ)
        head = RequestDecoder(PullMessageRequest).decode(Frame(CODEC_ROCKETMQ, header, b""))
        assert (head.ext.queue_offset, head.ext.commit_offset) == (1234, 1200)
    twice = encode_request(11, 9, {**PULL, "queueOffset ": "5"}, codec=CODEC_ROCKETMQ).replace(
        b"queueOffset ", b"\0queueOffset"
    )
    general = from_ext(PullMessageRequest, decode_head(Frame(CODEC_ROCKETMQ, twice, b"")).ext_fields)
    assert RequestDecoder(PullMessageRequest).decode(Frame(CODEC_ROCKETMQ, twice, b"")).ext == general


@given(st.integers(0, 250), st.binary(max_size=3))
def test_a_damaged_binary_pull_is_read_as_the_general_way_reads_it(position, junk):
    header = encode_request(11, 1, PULL, codec=CODEC_ROCKETMQ)
    for damaged in (header[:position] + junk + header[position + len(junk) :], header[:position]):
        fast = read_pull(damaged)
        if fast is not None:
            assert fast.ext == from_ext(PullMessageRequest, decode_head(Frame(CODEC_ROCKETMQ, damaged, b"")).ext_fields)


@given(st.integers(0, 200), st.binary(max_size=3))
def test_a_damaged_binary_send_never_raises_anything_else(position, junk):
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1795273018160", "h": "0", "i": "x"}
    header = encode_request(310, 1, fields, codec=CODEC_ROCKETMQ)
    damaged = header[:position] + junk + header[position + len(junk) :]
    read_send(damaged)
    read_send(header[:position])
