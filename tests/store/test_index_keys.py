"""Which keys of a record the index has, in whatever order a client writes the properties."""

import pytest

from rmqkit.store.index.index import key_hashes
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
