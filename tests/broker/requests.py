"""Requests as clients write them, for scripts."""

from typing import Any

from rmqkit.broker.node import Broker
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.record import Record, iter_records
from tests.helpers.script import Client, Command, Script

UNIQ = "UNIQ_KEY\x017F000001000118B4AAC2000000000001\x02"


def send_fields(topic: str = "T", **changes: Any) -> dict[str, Any]:
    """extFields of SEND_MESSAGE_V2 as Java 5.x sends them; `changes` by letter."""
    fields = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1760000000000",
        "h": "0",
        "i": f"{UNIQ}WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def send(client: Client, topic: str = "T", body: bytes = b"hello", **changes: Any) -> Command:
    return client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, **changes), body)


def pull_fields(topic: str = "T", queue_id: int = 0, offset: int = 0, **changes: Any) -> dict[str, Any]:
    """A pull with its own subscription, no suspension."""
    fields = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
        "maxMsgBytes": "262144",
    }
    return {**fields, **changes}


def pull(client: Client, topic: str = "T", queue_id: int = 0, offset: int = 0, **changes: Any) -> Command:
    return client.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, offset, **changes))


def records(answer: Command) -> list[Record]:
    return list(iter_records(answer.body, check_crc=True))


def create_group(client: Client, group: str = "CG") -> None:
    assert client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}).code == 0


def with_topic(script: Script[Broker], topic: str = "T", queues: int = 4, **changes: Any) -> Client:
    """A connected client and a topic."""
    client = script.connect()
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, **changes})
    assert answer.code == 0, answer
    return client
