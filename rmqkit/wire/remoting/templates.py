"""Templates for responses with binary headers.

The parts that all responses of a kind share are encoded once; the rest is filled in with the `%`
operator of bytes. The binary format puts a text's size in front of the text, so a template is only
valid for fixed sizes of the texts that are filled in.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rmqkit.wire.codes import VERSION, Language
from rmqkit.wire.remoting.headers import FLAG_RESPONSE


class Field(NamedTuple):
    """A field of a template.

    `text` consists of escaped bytes (`plain`), placeholders, or both; filled in it has `size`
    bytes.
    """

    name: str
    text: bytes
    size: int


def plain(text: bytes) -> bytes:
    """Escape a text without placeholders for use in a template."""
    return text.replace(b"%", b"%%")


def fixed(name: str, value: str) -> Field:
    """Return a field whose value is the same in every response."""
    text = value.encode()
    return Field(name, plain(text), len(text))


def binary_header(code: int, remark: str, fields: Iterable[Field]) -> tuple[bytes, int]:
    """Return the template of a response header, and its size in bytes when it is filled in.

    The placeholders are the opaque (4 bytes), then those of the fields. A field of size 0 is left
    out; its placeholders stay.
    """
    parts: list[bytes] = []
    size = 0
    for name, text, text_size in fields:
        key = name.encode()
        if text_size:
            parts.append(plain(len(key).to_bytes(2, "big") + key + text_size.to_bytes(4, "big")))
            size += 6 + len(key) + text_size
        parts.append(text)
    remark_text = remark.encode()
    before = code.to_bytes(2, "big") + Language.PYTHON.to_bytes(1, "big") + VERSION.to_bytes(2, "big")
    sized_remark = len(remark_text).to_bytes(4, "big") + remark_text
    after = FLAG_RESPONSE.to_bytes(4, "big") + sized_remark + size.to_bytes(4, "big")
    return b"".join([plain(before), b"%b", plain(after), *parts]), len(before) + 4 + len(after) + size
