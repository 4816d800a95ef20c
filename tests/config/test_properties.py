"""Java's property files, by the rules of java.util.Properties.load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.settings.properties import read


def pairs(text: str) -> list[tuple[str, str]]:
    return [(item.key, item.value) for item in read(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1")]),
        ("a = 1 ", [("a", "1 ")]),
        ("  a\t:\t1", [("a", "1")]),
        ("a 1", [("a", "1")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("a==1", [("a", "=1")]),
        ("a = b = c", [("a", "b = c")]),
        ("# no\n! no\na=1", [("a", "1")]),
        ("a=1 # not a comment", [("a", "1 # not a comment")]),
        ("a=one,\\\n   two", [("a", "one,two")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a\\ b\\==1", [("a b=", "1")]),
        ("a=C:\\\\rmq\\tx", [("a", "C:\\rmq\tx")]),
        ("a=\\u00e9\\ud83d\\ude00", [("a", "é😀")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=127.0.0.1:9876;127.0.0.1:9877", [("a", "127.0.0.1:9876;127.0.0.1:9877")]),
        ("a=1\\", [("a", "1")]),
        ("=1", [("", "1")]),
        ("", []),
    ],
)
def test_java_reads_it_like_this(text: str, expected: list[tuple[str, str]]):
    assert pairs(text) == expected


def test_lines_are_counted_by_where_a_key_begins():
    text = "# head\n\na=1,\\\n  2\n! more\nb=3\n"
    assert [(item.key, item.line) for item in read(text)] == [("a", 3), ("b", 6)]


def test_an_xml_comment_is_skipped():
    """Apache's namesrv-n0.conf begins with such a comment.

    The file is in distribution/conf/controller/cluster-3n-namesrv-plugin.
    """
    assert pairs("<!--\n  Licensed to nobody\n  -->\nlistenPort = 9876\n<!-- one line -->\nb=2") == [
        ("listenPort", "9876"),
        ("b", "2"),
    ]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uxyz1", "\\u=1"])
def test_a_broken_unicode_escape_is_an_error(text: str):
    with pytest.raises(ValueError, match="hex"):
        read(text)


def escaped(text: str) -> str:
    """Write text in one of the forms that java.util.Properties.store may use."""
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_escaped_comes_back(values: dict[str, str]):
    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in values.items())
    assert dict(pairs(text)) == values


@given(st.text(alphabet="ab\\=: \t\n\r#!u0<>-"))
def test_any_text_is_read_or_is_a_value_error(text: str):
    try:
        found = read(text)
    except ValueError:
        return
    assert all(1 <= item.line <= text.count("\n") + text.count("\r") + 1 for item in found)
