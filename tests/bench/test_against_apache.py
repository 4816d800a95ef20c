"""Tests how the figures of pairs are collected and stored."""

from pathlib import Path

from tests.bench import figures as kept
from tests.bench.against_apache import Known, add_pair, store
from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import FIRST, WARM, SessionFigures


def session(rate: float, *keys: tuple[str, str]) -> SessionFigures:
    return {key: {"perSecond": rate} for key in keys}


def test_a_measured_row_replaces_its_stored_figures_in_all_regimes(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    kept.save(path, {"rows": {"batch": {"pairs": []}, "drain": {FIRST: []}}})
    known: Known = {}
    keys = (("batch", FIRST), ("batch", WARM), ("memory", WARM))
    for number in range(2):
        add_pair(known, {OURS: session(200 + number, *keys), APACHE: session(100, *keys)})
    store(path, known, {"seconds": 4.0})
    figures = kept.load(path)
    pairs = [{OURS: {"perSecond": 200 + number}, APACHE: {"perSecond": 100}} for number in range(2)]
    at = figures["rows"]["batch"]["at"]
    assert figures["rows"] == {
        "batch": {"at": at, FIRST: pairs, WARM: pairs},
        "memory": {"at": at, WARM: pairs},
        "drain": {FIRST: []},
    }
    assert figures["method"] == {"seconds": 4.0}
