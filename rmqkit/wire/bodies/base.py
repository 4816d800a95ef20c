"""Body: the base of all JSON bodies.

The fields of a body are in the order of their wire names, since Java writes them in that order (a
test checks it). A field that is None is left out. Decoding is tolerant (`fastjson`): unknown fields
are ignored, absent ones get Java's defaults.
"""

from typing import ClassVar, Self

import msgspec

from rmqkit.wire import fastjson


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """A JSON body.

    A subclass repeats `kw_only=True`, since type checkers do not inherit it.
    """

    #: the body contains `MessageQueue`s, as keys or as items of lists
    HAS_QUEUES: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return compact JSON with quoted integer keys."""
        return fastjson.dumps(self)

    def pretty(self) -> str:
        """Return the text in the format of the files in a store's `config` folder."""
        return fastjson.pretty(self)

    @classmethod
    def decode(cls, data: bytes | str, *, size_max: int = fastjson.TEXT_SIZE_MAX) -> Self:
        """Return the decoded body.

        Raises RemoteProtocolError, which names the body and the field.
        """
        return fastjson.load_as(cls, data, size_max=size_max, has_queues=cls.HAS_QUEUES)
