"""The requests of a range's pulls: frames that differ in opaque, offset and count alone, so they are made of templates.

They have the binary header, in the order in which Java's consumers write it: brokers read it sooner than JSON. Sizes stand
before the texts, so there is a template for each number of digits.

Source: `remoting/.../header/PullMessageRequestHeader.java` (`encode`).
"""

from functools import cache
from struct import Struct

from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, frame
from rmqkit.wire.remoting.headers import encode_request
from rmqkit.wire.schema import to_ext
from rmqkit.wire.schemas.pull import PullMessageRequest

#: of a frame with a binary header: size, mark, code, language and version stand before it
_OPAQUE_AT = 13
_opaque = Struct(">i").pack
#: stands for a digit where the numbers go; in no text
_PLACE = "\0"


class PullRequests:
    """Frames of pulls like `request`, whose offset and count do not count."""

    def __init__(self, request: PullMessageRequest) -> None:
        self._ext = to_ext(request)
        self._template = cache(self._made)

    def frame(self, opaque: int, offset: int, count: int) -> bytes:
        template = self._template(len(str(offset)), len(str(count)))
        return template % (_opaque(opaque), offset, count)

    def _made(self, offset_digits: int, count_digits: int) -> bytes:
        offset, count = _PLACE * offset_digits, _PLACE * count_digits
        header = encode_request(
            RequestCode.PULL_MESSAGE, 0, self._ext | {"queueOffset": offset, "maxMsgNums": count}, codec=CODEC_ROCKETMQ
        )
        text = frame(header, codec=CODEC_ROCKETMQ)
        parts = [text[:_OPAQUE_AT]]
        rest = text[_OPAQUE_AT + 4 :]
        for name, places in (("queueOffset", offset), ("maxMsgNums", count)):
            field = len(name).to_bytes(2, "big") + name.encode() + len(places).to_bytes(4, "big")
            before, _, rest = rest.partition(field + places.encode())
            parts.append(before + field)
        first, second, third = (part.replace(b"%", b"%%") for part in parts)
        return first + b"%b" + second + b"%d" + third + b"%d" + rest.replace(b"%", b"%%")
