"""A slave's verdict from the record that an Apache master has at the slave's last offset."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmqkit.broker.replication.divergence import Divergence
from rmqkit.broker.replication.tail_probe import TailComparison
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

MASTER = "10.0.0.1:10911"
#: the slave's last record is from 900 to 1000
SAME, OTHER = TailComparison(900, 1000, True), TailComparison(900, 1000, False)


def none(log_begin: int, log_end: int) -> TailComparison:
    return TailComparison(900, 1000, None, log_begin, log_end)


def judge(shown: TailComparison, *, start_end: int, end: int = 1000, known_end: int = -1, known_master: str = "") -> Any:
    context: Any = SimpleNamespace(disk=None)
    store: Any = SimpleNamespace(offset_written=end)
    divergence = Divergence(context, store, "config")
    known = msgspec.structs.replace(divergence._known, master_address=known_master, master_start_end=known_end)
    divergence._known = known
    said = ExchangeHAInfoResponse(master_address=MASTER, master_flush_offset=start_end)
    return divergence.judge(said, shown)


@pytest.mark.parametrize(
    ("shown", "facts", "state"),
    [
        # a folder taken over from another broker: longer than the master's log was at its start,
        # and with the same bytes
        (SAME, {"start_end": 0}, ""),
        (SAME, {"start_end": 1000}, ""),
        # the log ends with a part of a record; a master that was restarted since has lost it, one
        # that was not may still have it
        (SAME, {"start_end": 1000, "end": 1050}, "ahead"),
        (SAME, {"start_end": 1000, "end": 1050, "known_end": 1000}, ""),
        # the master lost its end twice at the same offset
        (none(0, 800), {"start_end": 800, "known_end": 800}, "ahead"),
        (none(0, 950), {"start_end": 950}, "ahead"),
        # the slave was away for so long that the master has removed its records
        (none(5000, 9000), {"start_end": 0}, ""),
        # the master has lost its log from 800 on, and has grown again since
        (OTHER, {"start_end": 800}, "ahead"),
        (none(0, 9000), {"start_end": 800}, "foreign"),
        (OTHER, {"start_end": 800, "known_master": "10.0.0.9:10911"}, "foreign"),
        (OTHER, {"start_end": 5000}, "foreign"),
    ],
)
def test_a_slave_follows_only_if_its_log_is_the_masters(shown: TailComparison, facts: dict[str, Any], state: str) -> None:
    assert (judge(shown, **facts).state or "") == state


def test_a_truncation_goes_back_to_the_masters_end_at_its_start() -> None:
    assert judge(none(0, 950), start_end=800).cut_to == 800
    assert judge(OTHER, start_end=800).cut_to == 800
