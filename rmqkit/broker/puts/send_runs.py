"""Plain sends of one connection that were read and appended together (`plain_sends.py`).

They are parked and answered as one item, without a `Call` for each of them (`puts.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rmqkit.runtime.calls import Call
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.remoting import Remoting
from rmqkit.store.contract import PutResult
from rmqkit.wire.bodies import TopicConfig
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ
from rmqkit.wire.schemas.send import SendMessageRequestV2


class SentForm(NamedTuple):
    """What sends share that differ only in opaque, born time, unique id and body.

    The second line has fields of the message, the last one those of the request.
    """

    #: the topic's configuration when the form was made
    config: TopicConfig
    topic: str
    queue_id: int
    flag: int
    #: without the bits of the hosts
    sys_flag: int
    reconsume_times: int
    #: properties behind the unique id, as stored
    properties: bytes
    tags_code: int
    ext: SendMessageRequestV2
    request_flag: int
    version: int
    language: int


#: form, opaque as in the header, unique id
Sent = tuple[SentForm, bytes, bytes]


class SendRun(NamedTuple):
    """Appended sends with binary headers, and their results."""

    remoting: Remoting
    conn: Connection
    code: int
    sends: Sequence[Sent]
    results: Sequence[PutResult]

    @property
    def is_measured(self) -> bool:
        """Whether the response time of each send is recorded, which takes calls."""
        return self.remoting.is_measured

    def calls(self) -> Iterator[tuple[Call[Any], int, bytes, PutResult, bool, bytes]]:
        """Yield the sends one by one, as `Puts` parks the call of any other send."""
        remoting, conn, code, sends, results = self
        for (form, opaque, unique), result in zip(sends, results, strict=True):
            number = int.from_bytes(opaque, "big", signed=True)
            call = remoting.make_call(
                remoting, conn, code, form.ext, b"", number, form.request_flag, form.version, form.language, CODEC_ROCKETMQ
            )
            call.changed = True
            yield call, form.queue_id, unique, result, True, b""
