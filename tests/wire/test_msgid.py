import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import msgid
from rmqkit.wire.hosts import pack_host, unpack_host

# Made by Apache 5.5.0: MessageDecoder.decode(...).getMsgId(), MessageClientIDSetter.createUniqID()
OFFSET_V4 = "C0A8010200002A9F0000011F71FB04CB"
OFFSET_V6 = "0000000000000000000000000000000100002A9F0000011F71FB04CB"
UNIQUE_V6 = "FD000000000000000000000000000002394030946E096A2111540000"
NOVEMBER_MS = 1793491200000
MADE_MS = 1795271752020


@pytest.mark.parametrize(("host", "text"), [("192.168.1.2", OFFSET_V4), ("::1", OFFSET_V6)])
def test_offset_id_is_that_of_message_decoder_create_message_id(host: str, text: str) -> None:
    assert msgid.offset_id(pack_host(host, 10911), 1234567890123) == text
    assert msgid.decode_offset_id(text) == (host, 10911, 1234567890123)
    assert msgid.decode_offset_id(text.lower()).phy_offset == 1234567890123


def test_unique_id_is_that_of_message_client_id_setter_create_uniq_id() -> None:
    assert unique_id("fd00::2", 14656, 0x30946E09, MADE_MS - NOVEMBER_MS, 0) == UNIQUE_V6
    assert unique_id("10.0.0.1", 65536 + 7, -1, 2**40 + 5, 65536 + 9) == "0A0000010007FFFFFFFF000000050009"


def unique_id(ip: str, pid: int, salt: int, since_month_ms: int, counter: int) -> str:
    return msgid.unique_id_prefix(msgid.ip_bytes(ip), pid, salt) + msgid.unique_id_tail(since_month_ms, counter)


@pytest.mark.parametrize("bad", ["", "C0A8", OFFSET_V4[:-1] + "G", OFFSET_V4 + "00", " " * 32, "é" * 32, "+1" * 16])
def test_what_is_no_message_id_is_refused(bad: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a message id"):
        msgid.decode_offset_id(bad)


@pytest.mark.parametrize(
    ("host", "packed"),
    [
        ("127.0.0.1", "7f000001 0000c350"),
        ("2001:db8::1", "20010db8000000000000000000000001 0000c350"),
        ("[2001:db8::1]", "20010db8000000000000000000000001 0000c350"),
        ("fe80::1%eth0", "fe800000000000000000000000000001 0000c350"),
        ("::ffff:10.0.0.1", "0a000001 0000c350"),
    ],
)
def test_hosts_are_packed_as_inet_address_bytes_and_int_port(host: str, packed: str) -> None:
    assert pack_host(host, 50000) == bytes.fromhex(packed)
    assert unpack_host(bytes.fromhex(packed))[1] == 50000


def test_a_host_name_is_no_host() -> None:
    with pytest.raises(ValueError, match="localhost"):
        pack_host("localhost", 1)
    with pytest.raises(RemoteProtocolError, match="8 or 20"):
        unpack_host(b"\0" * 9)


ips = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None).map(str)


@given(ips, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_ids_read_back(ip: str, port: int, phy_offset: int) -> None:
    assert msgid.decode_offset_id(msgid.offset_id(pack_host(ip, port), phy_offset)) == (ip, port, phy_offset)


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEFg", min_size=32, max_size=32))
def test_any_text_gives_an_id_or_the_remote_error(text: str) -> None:
    try:
        msgid.decode_offset_id(text)
    except RemoteProtocolError:
        pass
