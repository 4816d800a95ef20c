"""Which bytes of a damaged commit-log file are rows: every sound record appears exactly once."""

import errno
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.spark.store import scan
from rmqkit.spark.store.scan import Filler, Gap, RecordSlice
from tests.spark.logs import Place, bodies_of, log_file, pieces_of, record_places

BASE = 3 << 20
SIZE = 16_384


def write(folder: Path, data: bytes) -> Path:
    path = folder / f"{BASE:020d}"
    path.write_bytes(data)
    return path


def sizes_add_up(pieces: list, size: int) -> None:
    """Check that the pieces cover the file without gaps or overlaps."""
    at = 0
    for piece in pieces:
        if isinstance(piece, RecordSlice):
            starts = piece.at + piece.records.starts
            assert starts[0] == at
            assert (starts[1:] == (starts + piece.records.sizes)[:-1]).all()
        else:
            assert piece.at == at
        assert piece.size > 0
        at += piece.size
    assert at == size


def test_a_whole_file(tmp_path):
    data, places = log_file(BASE, SIZE, bodies_of(Random(1), 50), blank=True)
    pieces = pieces_of(write(tmp_path, data), BASE, window_size=1024)
    assert record_places(pieces) == {place.at: place.size for place in places}
    assert {type(piece) for piece in pieces} == {RecordSlice, Filler}
    assert pieces[-1].kind == "blank"
    sizes_add_up(pieces, SIZE)


def test_zeroes_behind_the_written_part_are_the_end_and_in_front_of_other_files_lost(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x" * 50] * 9, blank=False)
    end = places[-1].at + places[-1].size
    path = write(tmp_path, data)
    assert pieces_of(path, BASE)[-1] == Filler(end, SIZE - end, "zeroes")
    pieces = pieces_of(path, BASE, is_followed=True)
    assert pieces[-1] == Gap(
        end, SIZE - end, "zeroes where a record should be; no intact record up to the end of the written part"
    )
    assert len(record_places(pieces)) == 9
    assert pieces_of(write(tmp_path, bytes(SIZE)), BASE) == [Filler(0, SIZE, "zeroes")]


def test_a_record_larger_than_the_window(tmp_path):
    data, places = log_file(BASE, 60_000, [b"a", b"b" * 20_000, b"c", b"", b"d" * 9000], blank=True)
    pieces = pieces_of(write(tmp_path, data), BASE, window_size=512)
    assert record_places(pieces) == {place.at: place.size for place in places}
    sizes_add_up(pieces, 60_000)


def test_batches_are_bounded(tmp_path):
    data, _ = log_file(BASE, SIZE, [b"x"] * 60, blank=True)
    pieces = pieces_of(write(tmp_path, data), BASE, window_size=SIZE, rows_max=25)
    assert [len(piece.records.starts) for piece in pieces[:-1]] == [25, 25, 10]


def damaged(place: Place, what: str) -> tuple[int, bytes]:
    head = 84 + 4 + 12 * (place.offset % 5 == 4) + 12 * (place.offset % 7 == 6)
    return {
        "size": (place.at, (place.size + 7).to_bytes(4, "big")),
        "huge": (place.at, (1 << 30).to_bytes(4, "big")),
        "magic": (place.at + 4, b"\0\0\0\1"),
        "crc": (place.at + 8, b"\x01\x02\x03\x04"),
        "queue": (place.at + 12, b"\xff\xff\xff\xff"),
        "place": (place.at + 28, bytes(8)),
        "flags": (place.at + 39, b"\x30"),
        "body": (place.at + head + 3, b"\0\0\0\0\0"),
        "body size": (place.at + head - 4, b"\xff\xff\xff\xff"),
        "topic size": (place.at + head + len(place.body), b"\x7f"),
        "topic": (place.at + head + len(place.body) + 1, b"\xff"),
        "properties size": (place.at + head + len(place.body) + 2, b"\0\0"),
        "properties": (place.at + place.size - 4, b"\0\0\0\0"),
    }[what]


REASONS = {
    "size": "do not add up",
    "huge": "a record of 1073741824 bytes where",
    "magic": "magic 0x00000001 is not a record's",
    "crc": "its body does not have the CRC it was stored with",
    "queue": "queue id or offset is negative",
    "place": "states physical offset 0",
    "flags": "body of|topic of|do not add up|does not have the CRC",
    "body": "its body does not have the CRC it was stored with",
    "body size": "a body of -1 bytes",
    "topic size": "a topic of 127 bytes",
    "topic": "its topic is not text",
    "properties size": "do not add up",
    "properties": "zeroes in its properties",
}


@pytest.mark.parametrize("what", REASONS)
def test_one_damaged_record_is_reported_with_position_size_and_reason(tmp_path, what):
    data, places = log_file(BASE, SIZE, [b"0123456789"] * 30, blank=True)
    at, garbage = damaged(places[9], what)
    data[at : at + len(garbage)] = garbage
    pieces = pieces_of(write(tmp_path, data), BASE)
    assert set(record_places(pieces)) == {place.at for place in places} - {places[9].at}
    (broken,) = (piece for piece in pieces if isinstance(piece, Gap) or (isinstance(piece, RecordSlice) and piece.damage))
    assert broken.size == places[9].size
    why = broken.why if isinstance(broken, Gap) else broken.damage
    assert any(reason in why for reason in REASONS[what].split("|")), why
    is_readable = what in ("crc", "queue", "place", "body", "topic", "properties")
    assert isinstance(broken, RecordSlice) is is_readable
    if is_readable:
        assert broken.crc_ok is (what not in ("crc", "body"))
    sizes_add_up(pieces, SIZE)


def test_neighbours_with_wrong_bodies_are_each_a_row(tmp_path):
    data, places = log_file(BASE, SIZE, [b"0123456789"] * 10, blank=True)
    for place in places[3:6]:
        at, garbage = damaged(place, "body")
        data[at : at + len(garbage)] = garbage
    pieces = pieces_of(write(tmp_path, data), BASE)
    rows = [
        (piece.at + int(piece.records.starts[0]), piece.size)
        for piece in pieces
        if isinstance(piece, RecordSlice) and piece.damage
    ]
    assert rows == [(place.at, place.size) for place in places[3:6]]


def test_a_blank_record_in_the_middle_is_damage(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x"] * 20, blank=True)
    data[places[5].at + 4 : places[5].at + 8] = b"\xcb\xd4\x31\x94"
    pieces = pieces_of(write(tmp_path, data), BASE)
    assert [piece.why for piece in pieces if isinstance(piece, Gap)] == [
        f"a blank record of {places[5].size} bytes where {SIZE - places[5].at} are left"
    ]
    assert len(record_places(pieces)) == 19


def test_a_message_that_carries_a_record_is_one_row(tmp_path):
    inner, _ = log_file(0, 1000, [b"inner"] * 3, blank=False)
    data, places = log_file(BASE, SIZE, [bytes(inner[:400])] * 5, blank=True)
    data[places[2].at + 1] ^= 1  # the scan searches that body for the next record
    pieces = pieces_of(write(tmp_path, data), BASE)
    assert set(record_places(pieces)) == {place.at for number, place in enumerate(places) if number != 2}


def test_a_file_that_is_cut_short_says_so(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x" * 40] * 60, blank=True)
    cut = places[50].at + 8
    pieces = pieces_of(write(tmp_path, data[:cut]), BASE, full_size=SIZE)
    assert len(record_places(pieces)) == 50
    torn, missing = pieces[-2:]
    assert torn.at == places[50].at
    assert torn.size == 8
    assert missing == Gap(cut, SIZE - cut, f"the file ends {SIZE - cut} bytes too early")
    sizes_add_up(pieces, SIZE)


def test_a_torn_end_is_damage_unless_a_broker_writes(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x" * 40] * 20, blank=False)
    last = places[-1]
    data[last.at + 60 :] = bytes(len(data) - last.at - 60)
    path = write(tmp_path, data)
    gap, zeroes = pieces_of(path, BASE)[-2:]
    assert gap.at == last.at
    assert 40 <= gap.size <= 60
    assert zeroes.kind == "zeroes"
    assert pieces_of(path, BASE, is_live=True)[-1] == Filler(last.at, SIZE - last.at, "tail")


def test_a_property_crc_is_checked(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x" * 40] * 20, blank=True, property_crc=True)
    assert len(record_places(pieces_of(write(tmp_path, data), BASE))) == 20
    data[places[4].at + 19] ^= 1  # the user's flag: nothing else covers it
    pieces = pieces_of(write(tmp_path, data), BASE)
    assert len(record_places(pieces)) == 19
    assert [piece.damage for piece in pieces if isinstance(piece, RecordSlice) and piece.damage] == [
        "it does not have the CRC that its properties state"
    ]


def test_a_long_topic(tmp_path):
    data, places = log_file(BASE, SIZE, [b"x" * 40] * 20, blank=True, topic="%RETRY%" + "g" * 150)
    assert set(record_places(pieces_of(write(tmp_path, data), BASE))) == {place.at for place in places}


def test_a_bad_sector_is_damage_and_not_the_end_of_the_reading(tmp_path, monkeypatch):
    data, places = log_file(BASE, SIZE, [b"x" * 40] * 80, blank=True)
    read = os.pread

    def bad(fd: int, size: int, at: int) -> bytes:
        if at < 8192 and at + size > 4096:
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, size, at)

    monkeypatch.setattr(scan.os, "pread", bad)
    pieces = pieces_of(write(tmp_path, data), BASE)
    sizes_add_up(pieces, SIZE)
    whole = {place.at for place in places if place.at + place.size <= 4096 or place.at >= 8192}
    assert set(record_places(pieces)) == whole
    whys = [piece.why for piece in pieces if isinstance(piece, Gap)]
    assert whys
    assert all("could not be read (Input/output error)" in why for why in whys)


def damage(data: bytearray, random: Random, end: int) -> list[tuple[int, int]]:
    """Damage the bytes in 1 to 5 places; return the ranges that were touched."""
    touched = []
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(end)
        size = min(random.choice((1, 1, 4, random.randrange(1, 700), 4096)), len(data) - at)
        kind = random.randrange(4)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
            size = 1
        elif kind == 1:
            data[at : at + size] = bytes(size)
        elif kind == 2:
            data[at : at + size] = random.randbytes(size)
        else:
            source = random.randrange(end)
            piece = data[source : source + size]
            data[at : at + len(piece)] = piece
            size = len(piece)
        touched.append((at, at + size))
    return touched


@given(
    seed=st.integers(0, 2**32 - 1),
    blank=st.booleans(),
    window_size=st.sampled_from([256, 1000, 4096, SIZE]),
    rows_max=st.sampled_from([1, 7, 8192]),
)
def test_every_undamaged_record_is_a_row_once_or_lies_in_damage(tmp_path_factory, seed, blank, window_size, rows_max):
    random = Random(seed)
    data, places = log_file(BASE, SIZE, bodies_of(random, random.randrange(1, 55)), blank=blank)
    before = bytes(data)
    damage(data, random, SIZE if blank else places[-1].at + places[-1].size)
    path = write(tmp_path_factory.mktemp("log"), data)
    pieces = pieces_of(path, BASE, window_size=window_size, rows_max=rows_max, is_followed=blank)
    sizes_add_up(pieces, SIZE)
    rows = record_places(pieces)
    in_damage = [
        (int(piece.records.starts[0]) + piece.at if isinstance(piece, RecordSlice) else piece.at, piece.size)
        for piece in pieces
        if isinstance(piece, Gap) or (isinstance(piece, RecordSlice) and piece.damage)
    ]
    for place in places:
        if data[place.at : place.at + place.size] != before[place.at : place.at + place.size]:
            continue
        is_row = rows.get(place.at) == place.size
        covered = any(at <= place.at and place.at + place.size <= at + size for at, size in in_damage)
        assert is_row != covered, place
    # No row has a body that was never stored, and the result does not depend on the window size.
    for at, size in rows.items():
        assert data[at + 28 : at + 36] == (BASE + at).to_bytes(8, "big")
        assert int.from_bytes(data[at : at + 4], "big") == size
    plain = pieces_of(path, BASE, window_size=1 << 20, is_followed=blank)
    assert record_places(plain) == rows


def test_a_wrong_body_is_never_a_sound_row(tmp_path):
    """Flip one bit in each byte of a record's head and body."""
    data, places = log_file(BASE, 4096, [b"0123456789"] * 4, blank=True)
    second = places[1]
    for at in range(second.at, second.at + 88 + 10):
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        rows = record_places(pieces_of(write(tmp_path, bad), BASE))
        others = {place.at for place in places if place is not second}
        assert others <= set(rows)
        if second.at in rows:
            body = second.at + 88
            assert bad[body : body + 10] == data[body : body + 10]
