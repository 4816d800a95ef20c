"""Properties text: the bodies of requests 25, 26, 318 and 319.

`rmqkit.settings.properties` documents the rules and the readers of this format.

Source: `common/.../MixAll.java` (`properties2String`, `string2Properties`).
"""

from collections.abc import Mapping

from rmqkit.settings import properties


def decode(text: bytes | str) -> dict[str, str]:
    """Return all pairs; the last value of a key wins.

    Never fails: a malformed line becomes an odd key, as in Java.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return {item.key: item.value for item in properties.read(text, lenient=True)}


def encode(pairs: Mapping[str, str]) -> str:
    """Return one line per pair, in the order of the mapping."""
    return "".join(f"{properties.escape(key, is_key=True)}={properties.escape(value)}\n" for key, value in pairs.items())
