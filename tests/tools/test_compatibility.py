"""The compatibility page is complete, and the recorded results match its tables."""

import importlib
import json

import pytest

from rmqkit.wire.codes import RequestCode
from tests.interop import ledger
from tools.pages.code_history import FIRST_SEEN, REASONS, SINCE, WHY_NOT
from tools.pages.compatibility import RECORDS, answered_by, page, refusal


@pytest.mark.parametrize("code", sorted(RequestCode), ids=lambda code: code.name)
def test_every_code_is_answered_or_refused_with_a_reason(code):
    assert bool(answered_by(code)) != bool(refusal(code))
    assert code in SINCE


def test_no_answered_code_has_a_reason_against_it():
    assert [code for code in WHY_NOT if answered_by(code)] == []


def test_no_code_is_listed_twice():
    for table, by_code in ((FIRST_SEEN, SINCE), (REASONS, WHY_NOT)):
        assert sum(len(list(codes)) for codes in table.values()) == len(by_code)
    assert set(SINCE) == set(map(int, RequestCode))


def test_codes_that_a_client_used_with_success_are_answered():
    tried = json.loads((RECORDS / "tried.json").read_text())
    assert tried
    for client, codes in tried.items():
        assert all(answered_by(code) for code in codes), client


def test_records_make_columns(tmp_path):
    (tmp_path / "tried.json").write_text('{"java-x": [310], "other": [310, 11]}')
    (tmp_path / "features.json").write_text('{"features": ["sync", "tag"], "clients": {"java-x": {"sync": ["a", "b"]}}}')
    lines = page(tmp_path).splitlines()
    assert "| 310 | SEND_MESSAGE_V2 | 4.1.0 | broker | A B |" in lines
    assert "| 11 | PULL_MESSAGE | 4.1.0 | broker | B |" in lines
    assert "| 100 | PUT_KV_CONFIG | 4.1.0 | name server |  |" in lines
    first = lines.index("| sync | 2 |")
    assert lines[first + 1] == "| tag | – |"


@pytest.mark.parametrize(
    "module",
    [
        "test_java_client",
        "test_java_older",
        "test_cpp_client",
        "test_node_client",
        "test_mqadmin",
        "test_our_client",
        "test_our_features",
    ],
)
def test_interop_checks_name_only_features_of_the_table(module: str) -> None:
    """`make interop` writes its results at its end; an unknown feature would fail it there."""
    loaded = importlib.import_module(f"tests.interop.{module}")
    shown = {**getattr(loaded, "SHOWS", {}), **getattr(loaded, "OURS_SHOWS", {})}
    assert shown
    assert set(shown) <= set(ledger.FEATURES)
