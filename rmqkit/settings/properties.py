"""Java's property files, as an Apache `.conf` is one: text to keys with the line each began on.

The rules are those of `java.util.Properties.load`: `#` and `!` begin a comment, `=`, `:` or white space ends a key,
a backslash escapes the next character or joins the next line, `\\uXXXX` is a UTF-16 unit. One thing is ours: an XML
comment (Apache's own controller examples begin with one) is skipped, where Java would read its words as keys that
nobody asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SPACE = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One key of a file as it was written; `line` counts from 1."""

    key: str
    value: str
    line: int


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, with continued lines joined, each with the number of its first."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    in_xml_comment = False
    while number < len(lines):
        first = number + 1
        line = lines[number].lstrip(SPACE)
        number += 1
        if in_xml_comment or line.startswith("<!--"):
            in_xml_comment = "-->" not in line
            continue
        if not line or line[0] in "#!":
            continue
        while ends_open(line):
            line = line[:-1] + (lines[number].lstrip(SPACE) if number < len(lines) else "")
            number += 1
        yield first, line


def ends_open(line: str) -> bool:
    """Whether a line goes on in the next: it ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def unescape(text: str) -> str:
    """The characters behind Java's escapes. Raises ValueError for a `\\u` without four hex digits."""
    if "\\" not in text:
        return text
    out = []
    i = 0
    while i < len(text):
        char = text[i]
        i += 1
        if char != "\\" or i == len(text):
            out.append(char)
            continue
        char = text[i]
        i += 1
        if char == "u":
            digits = text[i : i + 4]
            if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise ValueError("\\u needs four hex digits")
            out.append(chr(int(digits, 16)))
            i += 4
        else:
            out.append(ESCAPES.get(char, char))
    # Two units of a UTF-16 pair become one character; a lone one stays what it is.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def escape(text: str) -> str:
    """A value as one line that `read` and Java take for it. Java itself prints values as they are; only odd ones differ."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def split(line: str) -> tuple[str, str]:
    """Key and value of a logical line, both still escaped."""
    end = 0
    while end < len(line):
        if line[end] == "\\":
            end += 2
        elif line[end] in "=:" + SPACE:
            break
        else:
            end += 1
    rest = line[end:].lstrip(SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(SPACE)
    return line[:end], rest


def read(text: str) -> list[Property]:
    """Every key of a file, in order. Raises ValueError for a broken `\\u`."""
    found = []
    for number, line in logical_lines(text):
        key, value = split(line)
        found.append(Property(unescape(key), unescape(value), number))
    return found
