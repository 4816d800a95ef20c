import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.wire import properties as props

# MessageDecoder.messageProperties2String of {KEYS: "k1 k2", TAGS: "TagA"}, run with Apache 5.5.0
JAVA = bytes.fromhex("4b455953016b31206b320254414753015461674102")

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_text_is_that_of_message_decoder_message_properties_to_string() -> None:
    assert props.encode({"KEYS": "k1 k2", "TAGS": "TagA"}) == JAVA
    assert props.decode(JAVA) == {"KEYS": "k1 k2", "TAGS": "TagA"}
    assert props.encode({}) == b""
    assert props.decode(b"") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),
        (b"ab\x02c\x01d\x02", {"c": "d"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"\x02\x02\x02", {}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_malformed_text_is_decoded_as_by_message_decoder_string_to_message_properties(
    text: bytes, expected: dict[str, str]
) -> None:
    assert props.decode(text) == expected
    for name, value in expected.items():
        if b"\xff" not in text:
            assert props.find(text, name.encode()) == value.encode()
    assert props.find(text, b"absent") is None


@pytest.mark.parametrize("bad", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}])
def test_separators_that_would_read_back_otherwise_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must not hold"):
        props.encode(bad)


def test_find_takes_whole_names_only() -> None:
    text = b"MY_KEYS\x01no\x02KEYS_\x01no\x02x\x01KEYS\x02"
    assert props.find(text, b"KEYS") is None
    assert props.find(b"KEYS\x01yes\x02" + text, b"KEYS") == b"yes"
    assert props.find(text + b"KEYS\x01yes", b"KEYS") == b"yes"
    assert props.find(b"KEYS\x01yes\x02KEYS\x01\x02", b"KEYS") == b"yes"


def test_put_replaces_and_separates_remove_takes_every_pair() -> None:
    assert props.put(b"", b"A", b"1") == b"A\x011\x02"
    assert props.put(b"A\x011", b"B", b"2") == b"A\x011\x02B\x012\x02"
    assert props.put(b"A\x011\x02B\x012\x02", b"A", b"3") == b"B\x012\x02A\x013\x02"
    assert props.remove(b"A\x011\x02B\x012\x02A\x01\x02", b"A") == b"B\x012\x02"
    assert props.remove(b"A\x011", b"A") == b""
    assert props.remove(b"A\x011\x02", b"B") == b"A\x011\x02"


def test_reserved_names_are_those_of_message_const_string_hash_set() -> None:
    assert len(props.RESERVED_NAMES) == 51
    assert {"KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "TIMER_DELIVER_MS", "__CRC32#", "DUP_INFO"} <= props.RESERVED_NAMES
    assert (
        not {"__SHARDINGKEY", "INNER_NUM", "__transactionId__", "REDIRECT", "\x02", "TRACE_CONTEXT"} & props.RESERVED_NAMES
    )


@given(st.dictionaries(names, values))
def test_what_is_written_reads_back(pairs: dict[str, str]) -> None:
    text = props.encode(pairs)
    assert props.decode(text) == pairs
    for name, value in pairs.items():
        assert props.find(text, name.encode()) == value.encode()
        without = {n: v for n, v in pairs.items() if n != name}
        assert props.decode(props.remove(text, name.encode())) == without
        assert props.decode(props.put(text, name.encode(), b"new")) == without | {name: "new"}


@given(st.lists(st.sampled_from([b"\x01", b"\x02", b"A", b"B", b"AB", b"x"]), max_size=12).map(b"".join))
def test_find_agrees_with_decode_on_any_bytes(text: bytes) -> None:
    pairs = props.decode(text)
    for name in ("A", "B", "AB", "x", "AA"):
        found = props.find(text, name.encode())
        assert (None if found is None else found.decode()) == pairs.get(name)
        assert name not in props.decode(props.remove(text, name.encode()))
