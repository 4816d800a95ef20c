"""The frames of controller mode, as `AutoSwitchHAConnection` and its client write them."""

import random

import pytest

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.ha.epochs import (
    EPOCHS_MAX,
    EpochReports,
    EpochStart,
    EpochTransfer,
    EpochTransfers,
    MasterHandshake,
    SlaveHandshake,
    encode_epoch_report,
    encode_master_handshake,
    encode_slave_handshake,
    epoch_transfer_head,
)

SLAVE = SlaveHandshake(7, from_last_file=True, is_learner=False)
EPOCHS = (EpochStart(1, 0), EpochStart(3, 4096))


def test_a_slaves_handshake_has_its_id_and_what_it_wants():
    assert encode_slave_handshake(SLAVE).hex() == "00000001" + "0001" + "0000" + "0000000000000007"


def test_a_masters_handshake_has_its_epochs():
    head = "00000001" + "00000018" + "0000000000002000" + "00000003"
    body = "00000001" + "0000000000000000" + "00000003" + "0000000000001000"
    assert encode_master_handshake(MasterHandshake(8192, EPOCHS)).hex() == head + body
    assert encode_master_handshake(MasterHandshake(0, ())).hex() == "00000001" + "00" * 12 + "ffffffff"


def test_a_masters_handshake_has_the_newest_epochs_that_fit():
    many = tuple(EpochStart(number, number * 10) for number in range(EPOCHS_MAX + 5))
    (found,) = EpochTransfers().feed(encode_master_handshake(MasterHandshake(1, many)))
    assert isinstance(found, MasterHandshake)
    assert found.epochs == many[5:]


def test_a_transfer_has_its_epoch_and_the_confirm_offset():
    head = epoch_transfer_head(8192, 3, EPOCHS[1], 8000).hex()
    assert head == "00000002" + "00000003" + f"{8192:016x}" + "00000003" + f"{4096:016x}" + f"{8000:016x}"


def test_a_report_has_the_end_of_the_log():
    assert encode_epoch_report(513).hex() == "00000002" + f"{513:016x}"


def test_frames_are_found_however_they_are_cut():
    wanted = [
        MasterHandshake(8192, EPOCHS),
        EpochTransfer(4096, EPOCHS[1], 4000, b"log"),
        EpochTransfer(4099, EPOCHS[1], 4099, b""),
    ]
    stream = encode_master_handshake(wanted[0])
    stream += epoch_transfer_head(4096, 3, EPOCHS[1], 4000) + b"log" + epoch_transfer_head(4099, 0, EPOCHS[1], 4099)
    reports = encode_slave_handshake(SLAVE) + encode_epoch_report(1) + encode_epoch_report(2)
    for seed in range(200):
        pick = random.Random(seed)
        transfers, found = EpochTransfers(), []
        for part in cut(stream, pick):
            found += transfers.feed(part)
        assert found == wanted
        master = EpochReports()
        newest = [master.feed(part) for part in cut(reports, pick)]
        assert master.handshake == SLAVE
        assert [each for each in newest if each is not None][-1] == 2


def cut(data: bytes, pick: random.Random) -> list[bytes]:
    """Return the data in pieces of random sizes."""
    pieces = []
    while data:
        size = pick.randrange(1, 30)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize(
    "data",
    [
        bytes(20),
        b"\0\0\0\2" + bytes(32),
        b"\0\0\0\1" + b"\0\0\0\5" + bytes(12),
        b"\0\0\0\1" + b"\x7f\xff\xff\xff" + bytes(12),
        encode_master_handshake(MasterHandshake(0, ())) + epoch_transfer_head(0, 1 << 30, EPOCHS[0], 0),
        encode_master_handshake(MasterHandshake(0, ())) + epoch_transfer_head(-1, 0, EPOCHS[0], 0),
    ],
)
def test_what_no_master_sends_is_refused(data: bytes):
    with pytest.raises(RemoteProtocolError):
        EpochTransfers().feed(data)


def test_a_slave_without_a_handshake_is_refused():
    with pytest.raises(RemoteProtocolError, match="not in controller mode"):
        EpochReports().feed(encode_epoch_report(1) + encode_epoch_report(2))
