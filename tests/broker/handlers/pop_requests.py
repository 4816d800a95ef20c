"""Requests of pop as Java 5.5.0 writes them, and what answers say."""

import base64
import json
from typing import NamedTuple

from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode
from tests.broker.requests import UNIQ, records, send

INVISIBLE_MS = 60_000


def body_bytes(text):
    return text.encode() if isinstance(text, str) else text


def pop_fields(script, topic="T", **changes):
    fields = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": str(INVISIBLE_MS),
        "pollTime": "0",
        "bornTime": str(script.clock.wall_ms),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    return {key: str(value) for key, value in {**fields, **changes}.items() if value is not None}


class Message(NamedTuple):
    """A popped message with what its handle needs."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    handle: str
    reconsume_times: int
    properties: dict

    @property
    def real_topic(self):
        """The topic of its queue, which acks name."""
        flag = self.handle.split(" ")[4]
        return self.topic if flag == "0" else f"%RETRY%CG{'_' if flag == '1' else '+'}{self.topic}"


def messages(answer):
    """Return the messages of an answer to a pop, with the handles that Java's client builds."""
    starts = {}
    for part in filter(None, answer.ext["startOffsetInfo"].split(";")):
        flag, queue_id, start = part.split(" ")
        starts[flag, int(queue_id)] = start
    found = []
    for record in records(answer):
        properties = props.decode(record.properties)
        handle = properties.get("POP_CK")
        if handle is None:
            ext = answer.ext
            start = starts["0", record.queue_id]
            handle = (
                f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 broker-a "
                f"{record.queue_id} {record.queue_offset}"
            )
        found.append(
            Message(
                record.body, record.topic, record.queue_id, record.queue_offset, handle, record.reconsume_times, properties
            )
        )
    return found


def pop(script, client, topic="T", **changes):
    """Pop, and return the answer that must come at once."""
    return client.ask(RequestCode.POP_MESSAGE, pop_fields(script, topic, **changes))


def popped(script, client, topic="T", **changes):
    answer = pop(script, client, topic, **changes)
    if answer.code == 210:
        return []
    assert answer.code == 0, answer
    return messages(answer)


def ack_fields(message, **changes):
    fields = {
        "consumerGroup": "CG",
        "topic": message.real_topic,
        "queueId": message.queue_id,
        "extraInfo": message.handle,
        "offset": message.offset,
    }
    return {key: str(value) for key, value in {**fields, **changes}.items() if value is not None}


def ack(client, message, **changes):
    return client.ask(RequestCode.ACK_MESSAGE, ack_fields(message, **changes))


def change(client, message, invisible_ms, **changes):
    fields = ack_fields(message, invisibleTime=invisible_ms, **changes)
    return client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def changed(client, message, invisible_ms, **changes):
    """Change the invisible time; return the message with its new handle."""
    answer = change(client, message, invisible_ms, **changes)
    assert answer.code == 0, answer
    words = message.handle.split(" ")
    ext = answer.ext
    words[:4] = str(message.offset), ext["popTime"], ext["invisibleTime"], ext["reviveQid"]
    return message._replace(handle=" ".join(words))


def batch_of(messages_of_one, **changes):
    """Return one item of a batch ack."""
    first = messages_of_one[0]
    start, pop_ms, invisible_ms, revive, flag, _, queue_id, _ = first.handle.split(" ")
    bits = 0
    for each in messages_of_one:
        bits |= 1 << each.offset - int(start)
    image = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    item = {
        "b": base64.b64encode(image).decode(),
        "c": "CG",
        "it": int(invisible_ms),
        "pt": int(pop_ms),
        "q": int(queue_id),
        "r": flag,
        "rq": int(revive),
        "so": int(start),
        "t": first.topic,
    }
    return {**item, **changes}


def batch_ack(client, *items, broker_name="broker-a"):
    body = json.dumps({"acks": list(items), "brokerName": broker_name}).encode()
    return client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)


def fill(client, count, topic="T", queue_id=0, tags=""):
    """Send numbered messages."""
    for number in range(count):
        extra = f"TAGS\x01{tags}\x02" if tags else ""
        unique = UNIQ.replace("000000000001", f"{number:012d}")
        answer = send(client, topic, body_bytes(f"m{number}"), e=str(queue_id), i=unique + extra)
        assert answer.code == 0, answer
