"""Properties text: bodies of 25, 26, 318 and 319, and Apache's `.conf` files.

Java's `.properties` format as `java.util.Properties.load` reads it: `key=value`, `key:value` or `key value` lines; `#`
and `!` start a comment; a backslash at the end of a line continues it; `\\t \\n \\r \\f \\uXXXX` are escapes, any other
escaped character is itself. `encode` writes `key=value` lines without escapes, as `MixAll.properties2String` does:
the value is the rest of the line, so a value with a line end or a backslash is escaped here, which Java reads back.

Source: `common/.../MixAll.java` (`properties2String`, `string2Properties`).
"""

import re
from collections.abc import Mapping

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPLIT = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


def decode(text: bytes | str) -> dict[str, str]:
    """All pairs, the last of a key winning. Never fails: what is odd becomes an odd key, as in Java."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    pairs: dict[str, str] = {}
    logical = ""
    continued = False
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(_BLANKS)
        if not continued and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        continued = slashes % 2 == 1
        if continued:
            logical += line[:-1]
            continue
        _add(pairs, logical + line)
        logical = ""
    if logical:
        _add(pairs, logical)
    return pairs


def _add(pairs: dict[str, str], line: str) -> None:
    match = _SPLIT.match(line)
    if line and match is not None:
        pairs[_unescape(match[1])] = _unescape(match[2])


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    # An escape is one UTF-16 unit: two of them may be one character.
    return _ESCAPE.sub(_unescaped, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _NAMED.get(code, code)


def encode(pairs: Mapping[str, str]) -> str:
    """One line a pair, in the mapping's order."""
    return "".join(f"{_escape(key, key=True)}={_escape(value)}\n" for key, value in pairs.items())


def _escape(text: str, *, key: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if key:
        text = re.sub(r"([=:\s#!])", r"\\\1", text)
    elif text[:1] in (" ", "\t", "\f"):
        text = "\\" + text
    return text
