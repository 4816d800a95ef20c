"""Answers with binary headers, made of templates: what is the same in all answers of a kind is put together once.

The binary form has its size before each text, so a template is one for the sizes of the texts that are filled in.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rmqkit.wire.codes import VERSION, Language
from rmqkit.wire.remoting.headers import FLAG_RESPONSE


class Field(NamedTuple):
    """A field of a template: `text` is `plain` bytes, places, or both; filled in it has `size` bytes."""

    name: str
    text: bytes
    size: int


def plain(text: bytes) -> bytes:
    """Text of a template that has no places."""
    return text.replace(b"%", b"%%")


def fixed(name: str, value: str) -> Field:
    text = value.encode()
    return Field(name, plain(text), len(text))


def binary_header(code: int, remark: str, fields: Iterable[Field]) -> tuple[bytes, int]:
    """The header of an answer, and how many bytes it has when it is filled in: with the opaque's 4 bytes, then with what
    the fields have places for. A field of no size is left out, its place stays."""
    parts: list[bytes] = []
    size = 0
    for name, text, text_size in fields:
        key = name.encode()
        if text_size:
            parts.append(plain(len(key).to_bytes(2, "big") + key + text_size.to_bytes(4, "big")))
            size += 6 + len(key) + text_size
        parts.append(text)
    said = remark.encode()
    before = code.to_bytes(2, "big") + Language.PYTHON.to_bytes(1, "big") + VERSION.to_bytes(2, "big")
    after = FLAG_RESPONSE.to_bytes(4, "big") + len(said).to_bytes(4, "big") + said + size.to_bytes(4, "big")
    return b"".join([plain(before), b"%b", plain(after), *parts]), len(before) + 4 + len(after) + size
