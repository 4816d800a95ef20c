"""Body: the base of all JSON bodies.

A body's fields stand in the order of their wire names, since that is the order in which Java writes them (a test looks
at it). A field that is None is left out. Decoding is tolerant (`fastjson`): unknown fields are ignored, absent ones get
Java's defaults.
"""

from typing import ClassVar, Self

import msgspec

from rmqkit.wire import fastjson


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """A subclass repeats `kw_only=True`, which type checkers do not inherit."""

    #: the body has `MessageQueue`s in it, as keys or as items of lists
    HAS_QUEUES: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Compact JSON, integer keys quoted."""
        return fastjson.dumps(self)

    def pretty(self) -> str:
        """The form of the files in a store's `config` folder."""
        return fastjson.pretty(self)

    @classmethod
    def decode(cls, data: bytes | str, *, size_max: int = fastjson.TEXT_SIZE_MAX) -> Self:
        """Raises RemoteProtocolError naming the body and the field."""
        return fastjson.load_as(cls, data, size_max=size_max, has_queues=cls.HAS_QUEUES)
