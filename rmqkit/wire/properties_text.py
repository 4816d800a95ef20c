"""Properties text: bodies of 25, 26, 318 and 319. The rules, and who reads them, are in `rmqkit.settings.properties`.

Source: `common/.../MixAll.java` (`properties2String`, `string2Properties`).
"""

from collections.abc import Mapping

from rmqkit.settings import properties


def decode(text: bytes | str) -> dict[str, str]:
    """All pairs, the last of a key winning. Never fails: what is odd becomes an odd key, as in Java."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return {item.key: item.value for item in properties.read(text, lenient=True)}


def encode(pairs: Mapping[str, str]) -> str:
    """One line a pair, in the mapping's order."""
    return "".join(f"{properties.escape(key, is_key=True)}={properties.escape(value)}\n" for key, value in pairs.items())
