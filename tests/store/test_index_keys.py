"""Which keys of a record the index has, in whatever order a client writes the properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.store.index.key_hashes import key_hashes, run_hashes
from rmqkit.wire.javahash import index_key_hash

PAIRS = {
    "TIMER_DELIVER_MS": "1760000000000",
    "UNIQ_KEY": "7F000001000000000000000000000001",
    "KEYS": "k1 k2",
    "TAGS": "A",
    "OWN": "TIMER_DELIVER_MS",
}


@pytest.mark.parametrize("first", list(PAIRS))
@pytest.mark.parametrize("left_out", [(), ("UNIQ_KEY",), ("KEYS", "TAGS"), ("TIMER_DELIVER_MS",)])
def test_the_order_of_the_properties_does_not_matter(first, left_out):
    names = [first, *(name for name in PAIRS if name != first)]
    properties = b"".join(f"{name}\x01{PAIRS[name]}\x02".encode() for name in names if name not in left_out)
    keys = [PAIRS["UNIQ_KEY"], *PAIRS["KEYS"].split(), "T#A"]
    gone = {PAIRS[name] for name in left_out if name in PAIRS}
    wanted = [key for key in keys if key not in gone and not ("KEYS" in left_out and key[0] in "kT")]
    assert key_hashes("T", properties) == [index_key_hash("T", key) for key in wanted]


ID = "7F00000102E74E0E2F2A6A31"
BEHINDS = ("", "WAIT\x01true\x02", "KEYS\x01a b\x02TAGS\x01A\x02", "UNIQ_KEY\x01x\x02", "n\x01" + "x" * 300 + "\x02")


@given(
    st.sampled_from(["", "TIMER_DELIVER_MS\x011760000000000\x02", "KEYS\x01k\x02"]),
    st.sampled_from([ID, "", "7F\u00e4", "7F"]),
    st.lists(st.text(st.sampled_from("0123456789ABCDEF\x01"), min_size=8, max_size=8), min_size=1, max_size=9),
    st.sampled_from(BEHINDS),
    st.sampled_from(["", "", "longer", "behind", "head", "split", "text"]),
)
def test_the_keys_of_records_that_are_alike_are_those_of_each_record(leading, head, tails, behind, odd):
    properties = [f"{leading}UNIQ_KEY\x01{head}{tail}\x02{behind}".encode() for tail in tails]
    last = properties[-1]
    properties[-1] = {
        "": last,
        "longer": last + b"a\x01b\x02",
        "behind": last.replace(b"true", b"trux").replace(b"a b", b"a c"),
        "head": last.replace(b"7F", b"7E").replace(b"1760", b"1761"),
        "split": last.replace(tails[-1].encode(), b"\x02abcd\x01e\x02"[:8]),
        "text": last.replace(tails[-1].encode(), "012345\u00e4".encode()),
    }[odd]
    found = run_hashes("T", properties)
    if found is not None:
        hashes, others = found
        assert [[each, *others] for each in hashes] == [key_hashes("T", each) for each in properties]


@pytest.mark.parametrize("leading", ["", "TIMER_DELIVER_MS\x011760000000000\x02"])
@pytest.mark.parametrize("behind", BEHINDS[:3])
def test_records_of_several_producers_are_hashed_by_column(leading, behind):
    properties = [f"{leading}UNIQ_KEY\x01{number:08X}{ID}\x02{behind}".encode() for number in range(0, 1 << 32, 1 << 25)]
    found = run_hashes("T", properties)
    assert found is not None
    assert [[each, *found[1]] for each in found[0]] == [key_hashes("T", each) for each in properties]
    assert run_hashes("T", [*properties, properties[0].replace(b"UNIQ", b"UNIX")]) is None
    assert run_hashes("T", [*properties, properties[0].replace(b"7F00", b"7F0\x02")]) is None
