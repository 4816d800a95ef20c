"""Java's property format: Apache's `.conf` files, and the bodies of configuration requests.

The rules are those of `java.util.Properties.load`:

- `#` and `!` begin a comment.
- `=`, `:` or white space ends a key.
- A backslash escapes the next character or joins the next line; `\\uXXXX` is a UTF-16 unit.

One rule is ours: in a file, an XML comment is skipped (Apache's controller examples begin with
one). Java would read its words as keys.

Bodies from peers are read with `lenient`: without that rule, and without errors. Invalid syntax
then becomes an odd key.

`escape` writes text that `read` restores. Java itself prints values unescaped
(`MixAll.properties2String`), so only unusual values differ.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

SPACE = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One key of a file as it was written; `line` counts from 1."""

    key: str
    value: str
    line: int


def logical_lines(text: str, xml_comments: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) of each logical line.

    Comments and blank lines are skipped, and continued lines are joined.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    in_xml_comment = False
    while number < len(lines):
        first = number + 1
        line = lines[number].lstrip(SPACE)
        number += 1
        if xml_comments and (in_xml_comment or line.startswith("<!--")):
            in_xml_comment = "-->" not in line
            continue
        if not line or line[0] in "#!":
            continue
        while ends_open(line):
            line = line[:-1] + (lines[number].lstrip(SPACE) if number < len(lines) else "")
            number += 1
        yield first, line


def ends_open(line: str) -> bool:
    """Return whether the next line continues this one (an odd number of backslashes at its end)."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def unescape(text: str, lenient: bool = False) -> str:
    """Return the text without Java's escapes.

    Raises ValueError for a `\\u` without four hex digits, unless lenient.
    """
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
            if len(digits) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                out.append(chr(int(digits, 16)))
                i += 4
            elif lenient:
                out.append(char)
            else:
                raise ValueError("\\u needs four hex digits")
        else:
            out.append(ESCAPES.get(char, char))
    # Two units of a UTF-16 pair become one character; a lone unit becomes U+FFFD.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def escape(text: str, *, is_key: bool = False) -> str:
    """Return a value, or a key, as one line that `read` and Java read back unchanged."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if is_key:
        return re.sub(r"([=:\s#!])", r"\\\1", text)
    return f"\\{text}" if text[:1] in (" ", "\t", "\f") else text


def split(line: str) -> tuple[str, str]:
    """Return key and value of a logical line, both still escaped."""
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


def read(text: str, *, lenient: bool = False) -> list[Property]:
    """Return every key, in order. Raises ValueError for an invalid `\\u`, unless lenient."""
    found = []
    for number, line in logical_lines(text, xml_comments=not lenient):
        key, value = split(line)
        found.append(Property(unescape(key, lenient), unescape(value, lenient), number))
    return found
