"""Responses with JSON and with ROCKETMQ (binary) headers.

A request is answered in its own header form, and both forms have the same content.

Source: `RocketMQSerializable.java`; the fields are those of
`SendMessageProcessor.handlePutMessageResult`.
"""

from pathlib import Path

import pytest

from rmqkit.broker.handlers.messages.pull_answers import pull_head
from rmqkit.broker.puts.answers import IDS_MAX, TEMPLATES_MAX, PutAnswers
from rmqkit.store.contract import GetStatus, PutResult, PutStatus, Read
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.remoting.frames import FrameBuffer
from rmqkit.wire.remoting.headers import encode_answer
from rmqkit.wire.schema import to_ext
from rmqkit.wire.schemas.pull import PullMessageResponse
from tests.broker.requests import UNIQ, pull_fields, records, send_fields, with_topic
from tests.helpers.script import raw_frame, read_command, write_command

GOLDEN = Path(__file__).parents[2] / "wire" / "golden"
ID = "7F000001" + f"{10911:08X}"
HOST = bytes.fromhex(ID)
UNIQUE = UNIQ[9:-1]


def read(data):
    (frame,) = FrameBuffer().feed(data)
    return read_command(frame)


def test_a_binary_send_is_answered_byte_for_byte(broker):
    """The bytes are those of an Apache broker that is configured for binary headers.

    Only the order of the fields differs: in Apache's broker it is a map's.
    """
    client = with_topic(broker)
    broker.turn(lambda: broker.node.received(client.conn, write_command(310, send_fields(), b"hello", opaque=8, codec=1)))
    fields = {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "queueId": "0",
        "msgId": ID + "0" * 16,
        "queueOffset": "0",
        "transactionId": UNIQUE,
    }
    expected = b"".join(
        len(name).to_bytes(2, "big") + name.encode() + len(value).to_bytes(4, "big") + value.encode()
        for name, value in fields.items()
    )
    header = bytes.fromhex("0000 03 01df 00000008 00000001 00000000") + len(expected).to_bytes(4, "big") + expected
    answers = PutAnswers(HOST, "DefaultRegion", True)
    frame = answers.binary(PutStatus.PUT_OK, 8, 0, UNIQUE.encode(), PutResult(PutStatus.PUT_OK, 0, 0, 200))
    assert frame == raw_frame(header, b"", 1)
    (answer,) = client.take()
    assert (answer.codec, answer.code, answer.opaque, answer.flag) == (1, 0, 8, 1)
    assert answer.ext == fields


@pytest.mark.parametrize("status", [PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT])
@pytest.mark.parametrize("unique", [UNIQUE, "", "x" * 300, "a b", '"', "100%s"])
@pytest.mark.parametrize("count", [0, 1, 3, 400])
@pytest.mark.parametrize("opaque", [0, 2**31 - 1, -(2**31) + 1])
@pytest.mark.parametrize("handle", [b"", b"djEgVCBiIDEgdQ=="])
def test_both_forms_say_the_same(status, unique, count, opaque, handle):
    """The fixed parts contain characters that are special in a template.

    The second response of each form is made from the cached template.
    """
    answers = PutAnswers(HOST, '50% "off" é', False)
    for first in (0, 2**40):
        offsets = tuple(first + 100 * number for number in range(count))
        result = PutResult(PutStatus.PUT_OK, first, 12_345, first + 100, offsets)
        args = status, opaque, 7, unique.encode(), result, handle
        one, two = (read(build(*args)) for build in (answers.json, answers.binary))
        assert one.ext.get("recallHandle", "").encode() == handle
        assert (one.codec, two.codec) == (0, 1)
        assert one[:6] == two[:6]
        assert one.ext["msgId"].split(",") == [f"{ID}{offset:016X}" for offset in offsets or (first,)]
        assert one.ext["MSG_REGION"] == '50% "off" é'
        assert ("transactionId" in one.ext) == unique.isalnum()
        assert (one.opaque, one.ext["queueId"], one.ext["queueOffset"]) == (opaque, "7", "12345")


def test_templates_are_bounded():
    """Clients choose the keys of the template caches: queue ids, lengths of keys and batches."""
    answers = PutAnswers(HOST, "r", True)
    for number in range(TEMPLATES_MAX * 2 + 10):
        answers.binary(PutStatus.PUT_OK, 1, number, b"a" * 20, PutResult(PutStatus.PUT_OK, 0, number, 200))
        assert len(answers._binary) <= TEMPLATES_MAX
    for count in (IDS_MAX, IDS_MAX + 1, 2000):
        answers.binary(PutStatus.PUT_OK, 1, 0, b"", PutResult(PutStatus.PUT_OK, 0, 0, 200, range(count)))
    assert all(len(each) < 4096 for each in answers._binary.values())


def test_batches_and_pulls_in_binary(broker):
    client = with_topic(broker)
    body = encode_batch([BatchMessage(0, text, UNIQ.encode()) for text in (b"a", b"b")])
    sent = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), body, codec=1)
    assert (sent.codec, sent.code, len(sent.ext["msgId"].split(","))) == (1, 0, 2)
    for offset, code in ((0, ResponseCode.SUCCESS), (2, ResponseCode.PULL_NOT_FOUND), (9, ResponseCode.PULL_OFFSET_MOVED)):
        one, two = (client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=offset), codec=codec) for codec in (0, 1))
        assert (one.codec, two.codec, two.code) == (0, 1, code)
        assert (one.ext, one.remark, one.body) == (two.ext, two.remark, two.body)
    assert [each.body for each in records(client.ask(RequestCode.PULL_MESSAGE, pull_fields(), codec=1))] == [b"a", b"b"]


@pytest.mark.parametrize("name", ["binary_pull_found", "binary_pull_not_found"])
def test_a_binary_answer_to_a_pull_is_what_apache_wrote(name):
    """Equal byte for byte, except for language and version."""
    raw = (GOLDEN / f"{name}.response.bin").read_bytes()
    said = read(raw)
    offsets = (int(said.ext[each]) for each in ("nextBeginOffset", "minOffset", "maxOffset"))
    found = Read(GetStatus[said.remark], *offsets, (said.body,), 1, len(said.body))
    ours = pull_head(1, said.opaque, said.code, found, int(said.ext["suggestWhichBrokerId"])) + said.body
    assert ours[:10] + ours[13:] == raw[:10] + raw[13:]


@pytest.mark.parametrize("codec", [0, 1])
def test_the_head_of_a_pull_is_what_the_general_way_makes(codec):
    for status, code, number in ((GetStatus.FOUND, 0, 7), (GetStatus.OFFSET_OVERFLOW_ONE, 19, 2**63 - 1)):
        ext = PullMessageResponse(
            suggest_which_broker_id=number % 5,
            next_begin_offset=number,
            min_offset=0,
            max_offset=10 * (number % 1000),
            topic_sys_flag=0,
            group_sys_flag=0,
        )
        found = Read(status, number, 0, 10 * (number % 1000), (b"body",), 1, 4)
        one = read(pull_head(codec, 5, code, found, number % 5) + b"body")
        two = read(encode_answer(code, 5, to_ext(ext), status.name, 4, codec) + b"body")
        assert one == two


def test_a_held_pull_is_answered_in_its_own_form(broker):
    client = with_topic(broker)
    held = pull_fields(sysFlag="6", suspendTimeoutMillis="5000")
    opaques = [client.tell(RequestCode.PULL_MESSAGE, held, codec=codec) for codec in (0, 1)]
    assert client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x").codec == 0
    assert [client.answer_to(opaque).codec for opaque in opaques] == [0, 1]


@pytest.mark.parametrize(
    ("code", "fields", "answered"),
    [
        (31_999, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (RequestCode.PULL_MESSAGE, {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.PULL_MESSAGE, pull_fields("None"), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.SEND_MESSAGE_V2, send_fields(b="no/topic"), ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_BROKER_CONFIG, {}, ResponseCode.SUCCESS),
    ],
)
def test_refusals_and_plain_answers_in_both_forms(broker, code, fields, answered):
    client = with_topic(broker)
    one, two = (client.ask(code, fields, codec=codec) for codec in (0, 1))
    assert (one.codec, two.codec, two.code) == (0, 1, answered)
    assert (one.ext, one.remark, one.body) == (two.ext, two.remark, two.body)


def test_while_the_broker_stops_both_forms_are_told(broker):
    client = with_topic(broker)
    broker.node.remoting.unavailable = "it stops"
    for codec in (0, 1):
        answer = client.ask(RequestCode.GET_BROKER_CONFIG, {}, codec=codec)
        assert (answer.codec, answer.code) == (codec, ResponseCode.SERVICE_NOT_AVAILABLE)
    broker.node.remoting.unavailable = ""


@pytest.mark.parametrize("codec", [2, 7, 128, 255])
def test_a_form_that_is_none_ends_the_connection_and_is_not_echoed(broker, codec):
    """An unknown header form closes the connection, even if a valid JSON or binary header follows.

    No response can have that form.
    """
    with_topic(broker)
    for sound in (0, 1):
        client = broker.connect()
        raw = write_command(RequestCode.GET_BROKER_CONFIG, {}, codec=sound)
        client.send(raw[:4] + bytes([codec]) + raw[5:])
        assert client.closed
        assert client.take() == []
