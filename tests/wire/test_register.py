import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigAndMappingTable
from rmqkit.wire.codes import Version

# RegisterBrokerBody.encode(true) of Apache 5.5.0: topics T and T2, one filter server
DEFLATED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d5512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae6162859199a1b20402d0303"
    "0313108b8728189a81909942b0a79fbb8f6b7c88a3bb4235485a3bc448c144c142c11c454609685e71627aaa5e496541aa9295929ba79b"
    "bf1248397bb4529a95a1522c90c9000024082639"
)
T2 = TopicConfig(topic_name="T2", read_queue_nums=4, write_queue_nums=8, perm=7, attributes={"message.type": "FIFO"})
BODY = RegisterBrokerBody(
    filter_server_list=["f:1"],
    topic_config_serialize_wrapper=TopicConfigAndMappingTable(
        data_version=DataVersion(counter=5, timestamp=1700000000000),
        topic_config_table={"T": TopicConfig(topic_name="T"), "T2": T2},
    ),
)


def deflated(*parts: bytes | int) -> bytes:
    """Compress the parts: numbers as i32, bytes preceded by their size."""
    out = b""
    for part in parts:
        out += part.to_bytes(4, signed=True) if isinstance(part, int) else len(part).to_bytes(4) + part
    return zlib.compress(out)


def text_of(config: TopicConfig) -> str:
    """`TopicConfig.encode`."""
    numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm}"
    attributes = fastjson.dumps(config.attributes).decode()
    return f"{config.topic_name} {numbers} {config.topic_filter_type} {attributes}"


def encoded(body: RegisterBrokerBody) -> bytes:
    """Return the body as a broker with `compressedRegister` writes it."""
    table = body.topic_config_serialize_wrapper
    mappings = table.topic_queue_mapping_info_map
    return deflated(
        table.data_version.encode(),
        len(table.topic_config_table),
        *(text_of(config).encode() for config in table.topic_config_table.values()),
        fastjson.dumps(body.filter_server_list),
        len(mappings),
        *map(fastjson.dumps, mappings.values()),
    )


def test_deflated_form_is_that_of_register_broker_body_encode() -> None:
    assert RegisterBrokerBody.decode_either(DEFLATED, compressed=True) == BODY
    assert zlib.decompress(encoded(BODY)) == zlib.decompress(DEFLATED)


def test_both_forms_read_back() -> None:
    assert RegisterBrokerBody.decode_either(BODY.encode(), compressed=False) == BODY
    assert RegisterBrokerBody.decode_either(encoded(BODY), compressed=True) == BODY


def test_deflated_bytes_under_a_header_that_says_plain_are_read() -> None:
    """BrokerOuterAPI of 5.x with `compressedRegister`."""
    assert RegisterBrokerBody.decode_either(DEFLATED, compressed=False) == BODY


def test_an_empty_body_has_no_topics() -> None:
    assert RegisterBrokerBody.decode_either(b"", compressed=False) == RegisterBrokerBody()


def test_mappings_are_read_from_brokers_of_v5_on() -> None:
    mapping = b'{"bname":"b","currIdMap":{0:0},"epoch":1,"topic":"S","totalQueues":1}'
    version = b'{"counter":1}'
    data = deflated(version, 0, b"[]", 1, mapping)
    new = RegisterBrokerBody.decode_either(data, compressed=True, broker_version=Version.V5_0_0)
    expected = {"S": {"bname": "b", "currIdMap": {"0": 0}, "epoch": 1, "topic": "S", "totalQueues": 1}}
    assert new.topic_config_serialize_wrapper.topic_queue_mapping_info_map == expected
    assert RegisterBrokerBody.decode_either(encoded(new), compressed=True) == new
    old = RegisterBrokerBody.decode_either(deflated(version, 0, b"[]"), compressed=True, broker_version=Version.V4_9_7)
    assert old.topic_config_serialize_wrapper.data_version == DataVersion(counter=1)
    with pytest.raises(RemoteProtocolError, match="ends early"):
        RegisterBrokerBody.decode_either(deflated(version, 0, b"[]"), compressed=True, broker_version=Version.V5_0_0)


def test_a_filter_server_list_that_is_none_counts_as_empty() -> None:
    read = RegisterBrokerBody.decode_either(deflated(b"{}", 0, b"nonsense", 0), compressed=True)
    assert read.filter_server_list == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x78garbage", "zlib"),
        (DEFLATED[:-1], "zlib: data ends early"),
        (DEFLATED[:20], "zlib: data ends early"),
        (deflated(), "ends early"),
        (deflated(-1), "count or size of -1"),
        (deflated(100), "ends early"),
        (deflated(b"{}", -5), "count or size of -5"),
        (deflated(b"{}", 2, b"T 4 4 6 SINGLE_TAG {}"), "ends early"),
        (deflated(b"{}", 1, b"T 4 4 6"), "topic configuration"),
        (deflated(b"{}", 1, b"T 4 x 6 SINGLE_TAG {}"), "topic configuration"),
        (deflated(b"[]"), "DataVersion"),
        (deflated(b"{}", 0, b"[]", 1, b"[]"), "dict"),
    ],
)
def test_damage_is_the_remote_error(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        RegisterBrokerBody.decode_either(data, compressed=True)


def test_a_small_body_cannot_inflate_beyond_the_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="more than 1000000 bytes"):
        RegisterBrokerBody.decode_either(bomb, compressed=True, size_max=1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


class TestTopicConfigText:
    def test_text_is_that_of_topic_config_encode(self) -> None:
        assert TopicConfig.from_text("T 16 16 6 SINGLE_TAG {}") == TopicConfig(topic_name="T")
        assert TopicConfig.from_text('T2 4 8 7 SINGLE_TAG {"message.type":"FIFO"}') == T2

    def test_attributes_are_optional_and_unreadable_ones_are_dropped(self) -> None:
        """TopicConfig.decode"""
        assert TopicConfig.from_text("T 16 16 6 SINGLE_TAG ") == TopicConfig(topic_name="T")
        assert TopicConfig.from_text("T 16 16 6 SINGLE_TAG") == TopicConfig(topic_name="T")
        assert TopicConfig.from_text("T 16 16 6 SINGLE_TAG {x") == TopicConfig(topic_name="T")


names = st.text("abcXYZ019_-%|", min_size=1, max_size=10)
configs = st.builds(
    TopicConfig,
    topic_name=names,
    read_queue_nums=st.integers(0, 2**31 - 1),
    write_queue_nums=st.integers(0, 2**31 - 1),
    perm=st.integers(0, 15),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(names, st.text(max_size=5), max_size=2),
)
bodies = st.builds(
    RegisterBrokerBody,
    filter_server_list=st.lists(names, max_size=2),
    topic_config_serialize_wrapper=st.builds(
        TopicConfigAndMappingTable,
        data_version=st.builds(
            DataVersion, counter=st.integers(0, 2**63 - 1), state_version=st.integers(0, 9), timestamp=st.integers(0)
        ),
        topic_config_table=st.lists(configs, max_size=4).map(lambda found: {c.topic_name: c for c in found}),
    ),
)


@given(bodies.filter(lambda body: body.topic_config_serialize_wrapper.data_version.timestamp < 2**63))
def test_what_is_written_reads_back_in_both_forms(body: RegisterBrokerBody) -> None:
    assert RegisterBrokerBody.decode_either(body.encode(), compressed=False) == body
    assert RegisterBrokerBody.decode_either(encoded(body), compressed=True) == body


@given(st.binary(max_size=80), st.booleans())
def test_random_bytes_give_a_body_or_the_remote_error(data: bytes, compressed: bool) -> None:
    for candidate in (data, zlib.compress(data), DEFLATED[: len(data)] + data):
        try:
            RegisterBrokerBody.decode_either(candidate, compressed=compressed)
        except RemoteProtocolError:
            pass
