import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.batch import BatchMessage, decode_batch, encode_batch
from tests.wire.apache_bytes import BATCH

GOLDEN = bytes.fromhex(BATCH)
MESSAGES = [
    BatchMessage(5, b"one", b"WAIT\x01true\x02TAGS\x01TagA\x02"),
    BatchMessage(0, b"two", b"WAIT\x01true\x02"),
]


def test_batch_is_that_of_message_decoder_encode_messages() -> None:
    assert encode_batch(MESSAGES) == GOLDEN
    assert decode_batch(GOLDEN) == MESSAGES
    assert decode_batch(b"") == []


def test_a_batch_cut_anywhere_but_between_messages_is_refused() -> None:
    whole = {0, 45, len(GOLDEN)}
    for size in range(len(GOLDEN) + 1):
        if size in whole:
            assert decode_batch(GOLDEN[:size]) == MESSAGES[: sorted(whole).index(size)]
        else:
            with pytest.raises(RemoteProtocolError, match="reaches past its end"):
                decode_batch(GOLDEN[:size])


def test_size_magic_and_crc_are_ignored_as_in_message_ext_encoder() -> None:
    assert decode_batch(b"\xff" * 12 + GOLDEN[12:]) == MESSAGES


@pytest.mark.parametrize(("position", "value"), [(16, b"\xff\xff\xff\xff"), (16, b"\x7f\xff\xff\xff"), (23, b"\xff\xff")])
def test_negative_and_huge_lengths_are_refused(position: int, value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="message 0 of a batch"):
        decode_batch(GOLDEN[:position] + value + GOLDEN[position + len(value) :])


def test_limits() -> None:
    with pytest.raises(RemoteProtocolError, match="more than 2 messages"):
        decode_batch(encode_batch(MESSAGES * 2), count_max=2)
    assert len(decode_batch(encode_batch(MESSAGES), count_max=2)) == 2
    with pytest.raises(ValueError, match="32768"):
        encode_batch([BatchMessage(0, b"", b"x" * 32768)])


messages = st.builds(BatchMessage, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50))


@given(st.lists(messages, max_size=5))
def test_what_is_written_reads_back(batch: list[BatchMessage]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(st.binary(max_size=120))
def test_random_bytes_give_messages_or_the_remote_error(data: bytes) -> None:
    try:
        batch = decode_batch(data)
    except RemoteProtocolError:
        return
    assert len(encode_batch(batch)) == len(data)
