"""Copies and comparisons of groups' offsets, and requests that are refused with a reason.

Source: `AdminBrokerProcessor.{cloneGroupOffset,queryCorrectionOffset}`.
"""

import pytest

from rmqkit.wire.bodies import CorrectionOffsets
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.test_stats import commit, subscribe
from tests.broker.requests import send, with_topic


def clone(client, **changes):
    fields = {"srcGroup": "CG", "destGroup": "NEW", "topic": "T", "offline": "true", **changes}
    return client.ask(RequestCode.CLONE_GROUP_OFFSET, {name: value for name, value in fields.items() if value is not None})


def test_a_topic_s_offsets_are_copied(broker):
    client = with_topic(broker)
    commit(client, 3, queue_id=0)
    commit(client, 4, queue_id=1)
    assert clone(client).code == 0
    assert broker.node.offsets.of("NEW", "T") == {0: 3, 1: 4}
    commit(client, 9)
    assert broker.node.offsets.query("NEW", "T", 0) == 3, "a copy"


def test_without_a_topic_all_are(broker):
    client = with_topic(broker)
    with_topic(broker, "U")
    commit(client, 1, "T")
    commit(client, 2, "U")
    assert clone(client, topic=None).code == 0
    assert broker.node.offsets.topics_of("NEW") == ["T", "U"]


def test_topics_an_online_group_does_not_subscribe_to_are_left_out(broker):
    client = with_topic(broker)
    with_topic(broker, "U")
    commit(client, 1, "T")
    commit(client, 2, "U")
    subscribe(broker.connect(), "U")
    assert clone(client, topic=None, offline="false").code == 0
    assert broker.node.offsets.topics_of("NEW") == ["U"]


def test_clones_that_do_nothing(broker):
    client = with_topic(broker)
    assert clone(client, topic="none").code == 0
    assert clone(client).code == 0
    assert clone(client, destGroup="a b").code == ResponseCode.INVALID_PARAMETER
    assert not broker.node.offsets.table


def test_the_least_offset_of_all_groups(broker):
    client = with_topic(broker)
    for _ in range(5):
        send(client)
    commit(client, 4, group="A")
    commit(client, 2, group="B")
    commit(client, 1, group="C")

    def correction(compare, **more):
        fields = {"topic": "T", "compareGroup": compare, **more}
        return CorrectionOffsets.decode(client.ask(RequestCode.QUERY_CORRECTION_OFFSET, fields).body).correction_offsets

    assert correction("A") == {0: 1}
    assert correction("A", filterGroups="C,x") == {0: 2}
    assert broker.node.offsets.query("C", "T", 0) == 1, "a filter takes nothing away"
    assert correction("C", filterGroups="C") == {0: 2**63 - 1}


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    ],
)
def test_unsupported_codes_are_refused_with_a_reason(broker, code):
    answer = broker.connect().ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark.startswith(f" request type {code} not supported: ")


def test_there_is_no_rocksdb_to_check(broker):
    answer = broker.connect().ask(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": "T", "checkStoreTime": "0"})
    assert answer.json["checkStatus"] == 0
