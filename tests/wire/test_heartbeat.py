import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies import HeartbeatData, SubscriptionData, decode_heartbeat, parse_subscription
from rmqkit.wire.bodies.heartbeat import CONSUME_FROM_WHERE, CONSUME_TYPES, MESSAGE_MODELS, enum_name
from rmqkit.wire.bodies.subscription import tags_of

# In the form of the C++ client (HeartbeatData.h, SubscriptionData.cpp): numbers for enums, the
# version as text, atoi of the tag for its hash code, no expression type, empty sets left out.
CPP = (
    b'{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"CG","messageModel":1,'
    b'"subscriptionDataSet":[{"codeSet":["0"],"subString":"TagA || TagB","subVersion":"1700000000000","tagsSet":["TagA",'
    b'"TagB"],"topic":"T"},{"subString":"*","subVersion":"1700000000000","topic":"%RETRY%CG"}]}]}'
)


def test_a_heartbeat_of_the_cpp_client_gets_javas_form() -> None:
    heartbeat = decode_heartbeat(CPP)
    (consumer,) = heartbeat.consumer_data_set
    assert heartbeat.client_id == "10.0.0.1@7"
    assert heartbeat.producer_data_set == []
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "CLUSTERING"
    assert consumer.subscription_data_set == [
        SubscriptionData(
            topic="T",
            sub_string="TagA || TagB",
            sub_version=1700000000000,
            tags_set=["TagA", "TagB"],
            code_set=[2598919, 2598920],
        ),
        SubscriptionData(topic="%RETRY%CG", sub_string="*", sub_version=1700000000000),
    ]


def test_a_heartbeat_of_java_stays_as_it_is() -> None:
    text = json.dumps(
        {
            "clientID": "c@1",
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": "CG",
                    "messageModel": "BROADCASTING",
                    "subscriptionDataSet": [
                        {
                            "classFilterMode": False,
                            "codeSet": [2598919],
                            "expressionType": "TAG",
                            "subString": "TagA",
                            "subVersion": 1700000000000,
                            "tagsSet": ["TagA"],
                            "topic": "T",
                        },
                        {
                            "classFilterMode": False,
                            "codeSet": [],
                            "expressionType": "SQL92",
                            "subString": "a > 1",
                            "subVersion": 1,
                            "tagsSet": [],
                            "topic": "S",
                        },
                    ],
                    "unitMode": False,
                }
            ],
            "heartbeatFingerprint": -5,
            "producerDataSet": [{"groupName": "PG"}],
            "withoutSub": True,
        },
        separators=(",", ":"),
    ).encode()
    assert decode_heartbeat(text) == HeartbeatData.decode(text)
    assert decode_heartbeat(text).encode() == text


def test_tags_without_an_expression_are_kept() -> None:
    text = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":'
        b'[{"topic":"T","tagsSet":["A"]},{"topic":"U"}]}]}'
    )
    (consumer,) = decode_heartbeat(text).consumer_data_set
    assert [(s.sub_string, s.tags_set, s.code_set) for s in consumer.subscription_data_set] == [
        ("A", ["A"], [65]),
        ("*", [], []),
    ]


@pytest.mark.parametrize(
    ("value", "name"), [(0, "CONSUME_ACTIVELY"), ("2", "CONSUME_POP"), ("X", "X"), (9, "9"), (-1, "-1"), ("", "")]
)
def test_enums_by_name_or_number(value: str | int, name: str) -> None:
    assert enum_name(value, CONSUME_TYPES) == name


def test_enums_are_in_javas_order() -> None:
    assert CONSUME_FROM_WHERE.index("CONSUME_FROM_TIMESTAMP") == 5
    assert CONSUME_FROM_WHERE.index("CONSUME_FROM_FIRST_OFFSET") == 4
    assert MESSAGE_MODELS == ("BROADCASTING", "CLUSTERING")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b'{"clientID":1}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T","subString":"||"}]}]}',
        b'{"clientID":"c","consumerDataSet":{"a":1}}',
    ],
)
def test_heartbeats_of_another_shape_are_the_remote_error(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(bad)


class TestParseSubscription:
    """FilterAPI.buildSubscriptionData and build, as run with Apache 5.5.0."""

    @pytest.mark.parametrize(
        ("expression", "sub_string", "tags"),
        [
            ("*", "*", []),
            ("", "*", []),
            (None, "*", []),
            ("TagA", "TagA", ["TagA"]),
            ("TagA || TagB", "TagA || TagB", ["TagA", "TagB"]),
            ("TagA||", "TagA||", ["TagA"]),
            ("|| TagA", "|| TagA", ["TagA"]),
            ("TagB||TagA||TagA", "TagB||TagA||TagA", ["TagB", "TagA"]),
            (" ", " ", []),
            ("A|B", "A|B", ["A|B"]),
            ("* || TagA", "* || TagA", ["*", "TagA"]),
        ],
    )
    def test_tag_expressions(self, expression: str | None, sub_string: str, tags: list[str]) -> None:
        subscription = parse_subscription("T", expression, sub_version=7)
        assert (subscription.topic, subscription.sub_string, subscription.sub_version) == ("T", sub_string, 7)
        assert subscription.tags_set == tags == tags_of(expression)
        assert len(subscription.code_set) == len(tags)
        assert subscription.is_tag_type

    def test_codes_are_java_hash_codes(self) -> None:
        assert parse_subscription("T", "TagA || TagB").code_set == [2598919, 2598920]

    @pytest.mark.parametrize("expression", ["||", "||||"])
    def test_an_expression_of_separators_is_refused(self, expression: str) -> None:
        with pytest.raises(RemoteProtocolError, match="names no tag"):
            parse_subscription("T", expression)

    def test_sql_is_carried_as_it_is(self) -> None:
        subscription = parse_subscription("T", "a > 1 || b", "SQL92", 3)
        assert subscription == SubscriptionData(topic="T", sub_string="a > 1 || b", expression_type="SQL92", sub_version=3)
        assert not subscription.is_tag_type
        for nothing in ("", None):
            with pytest.raises(RemoteProtocolError, match="SQL92"):
                parse_subscription("T", nothing, "SQL92")

    def test_no_type_means_tags(self) -> None:
        assert parse_subscription("T", "A", None) == parse_subscription("T", "A", "") == parse_subscription("T", "A")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["clientID", "consumerDataSet", "groupName", "subscriptionDataSet", "topic", "subString", "codeSet"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_gives_a_heartbeat_or_the_remote_error(value: object) -> None:
    try:
        decode_heartbeat(json.dumps(value).encode())
    except RemoteProtocolError:
        pass
