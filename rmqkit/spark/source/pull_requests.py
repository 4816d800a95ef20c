"""Builds the pull requests of a range from templates.

The frames differ only in request id (opaque), offset and count. They have the binary header, with
the fields in the order in which Java's consumers write them: brokers decode it faster than JSON.
The header stores the length of each number before its text, so there is one template for each
combination of digits.

Source: `remoting/.../header/PullMessageRequestHeader.java` (`encode`).
"""

from functools import cache
from struct import Struct

from rmqkit.runtime.remoting import Sign
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, frame
from rmqkit.wire.remoting.headers import encode_request
from rmqkit.wire.schema import to_ext
from rmqkit.wire.schemas.pull import PullMessageRequest

#: Position of the request id in a frame with a binary header, behind size, mark, code, language and
#: version.
_OPAQUE_AT = 13
_opaque = Struct(">i").pack
#: Placeholder for one digit of a number; it occurs in no text.
_PLACE = "\0"


class PullRequests:
    """Builds frames like `request`, with other offsets and counts."""

    def __init__(self, request: PullMessageRequest) -> None:
        self._ext = to_ext(request)
        self._template = cache(self._made)

    def frame(self, opaque: int, offset: int, count: int, sign: Sign | None = None) -> bytes:
        """Return the frame of a pull. With `sign` it is signed; a signature fits no template."""
        if sign is not None:
            ext = sign({**self._ext, "queueOffset": str(offset), "maxMsgNums": str(count)}, b"")
            header = encode_request(RequestCode.PULL_MESSAGE, opaque, ext, codec=CODEC_ROCKETMQ)
            return frame(header, codec=CODEC_ROCKETMQ)
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
