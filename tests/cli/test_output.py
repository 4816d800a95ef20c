"""Tables fit a narrow terminal; what is read or copied stays in one piece as long as possible."""

import io
import json

import pytest
from rich.console import Console

from rmqkit.cli import output
from rmqkit.cli.nodes.watch import COLUMNS
from rmqkit.cli.output import column_widths, rich_table

STATUS = [("broker-a-0", "paused", "SYNC_MASTER", "127.0.0.1:10911", 213415, 1078492000, "2/2")]
TRACE = ("what", "group", "client", "time", "took ms", "outcome", "topic", "tries before")
TRACED = [("consumed", "billing", "127.0.0.1:44584", "2026-11-22 02:38:55.885", 3, "SUCCESS", "orders", "-")]


def lines(columns, rows, width):
    console = Console(width=width, file=io.StringIO())
    console.print(rich_table(columns, rows, width))
    return console.file.getvalue().splitlines()


def test_a_clusters_status_fits_into_80_columns():
    head, _line, *rows = lines(COLUMNS, STATUS, 80)
    assert head.split() == " ".join(COLUMNS).split()
    assert len(rows) == 1
    assert "127.0.0.1:10911" in rows[0]


def test_headers_and_times_are_broken_at_blanks_before_any_word():
    text = "\n".join(lines(TRACE, TRACED, 80))
    for word in ("127.0.0.1:44584", "2026-11-22", "02:38:55.885", "consumed", "billing", "before"):
        assert word in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    for columns, rows in ((COLUMNS, STATUS), (TRACE, TRACED), (("a",), [("x" * 300,)]), (("none", "at all"), [])):
        assert max(map(len, lines(columns, rows, width))) <= width


def test_columns_are_as_wide_as_what_is_in_them_where_there_is_room():
    assert column_widths(("node", "n"), [("broker-a-0", 12345)], 80) == [10, 5]
    assert column_widths(("node", "n"), [], 80) == [4, 1]


COLUMNS_OF = {
    "name": "name",
    "rate": "rate:.1f",
    "when": "when_ms:time",
    "on": "on",
    "twice": lambda row: 2 * row["name"],
}
ROW = {"name": "a", "rate": 1.25, "when_ms": 0, "on": True}


def test_a_report_is_a_table_for_people(capsys):
    output.report([ROW, {**ROW, "name": "b", "rate": None, "on": False}], COLUMNS_OF, below="two rows")
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["name", "rate", "when", "on", "twice"],
        ["a", "1.2", "-", "yes", "aa"],
        ["b", "-", "-", "no", "bb"],
        ["two", "rows"],
    ]
    assert err == ""


@pytest.mark.parametrize("rows", [[ROW], []])
def test_a_report_as_json_is_the_value_alone(capsys, rows):
    output.report({"rows": rows, "sum": 1}, COLUMNS_OF, rows, as_json=True, none="no rows", below="one row")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"rows": rows, "sum": 1}
    assert err == ""


def test_a_report_without_rows_is_its_note_or_an_empty_table(capsys):
    output.report([], COLUMNS_OF, none="no rows", below="nothing")
    assert capsys.readouterr() == ("", "no rows\n")
    output.report([], {"name": "name", "on": "on"})
    assert capsys.readouterr() == ("name  on\n", "")


def test_the_result_of_a_change_is_a_line_or_json(capsys):
    output.answer({"topic": "T"}, "topic T is made", as_json=False)
    output.answer({"topic": "T"}, "topic T is made", as_json=True)
    out = capsys.readouterr().out
    assert out == 'topic T is made\n{\n  "topic": "T"\n}\n'
