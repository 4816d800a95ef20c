"""The request of the plug-in: code 71001, sent to a broker.

Plug-ins use the codes 70000 to 99999. Apache's codes are below 5000 and from 200000.
"""

from typing import Annotated

import msgspec

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Ext

GET_USAGE = 71_001
TOP_MAX = 100_000


class GetUsageRequest(Ext, kw_only=True):
    """The fields of a request. Without any, the response has every topic over its whole history.

    - `topic`: a name, or a prefix followed by `*`.
    - `since_millis`: length of the window in ms, counted back from the broker's last round.
    - `top`: the most topics to return, those that grew most first.
    - `system`: whether to include the broker's own topics.
    - `points`: whether to return each step of growth; needs a whole topic name.
    """

    topic: str | None = None
    since_millis: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    top: Annotated[int, msgspec.Meta(ge=1, le=TOP_MAX)] | None = None
    system: bool = False
    points: bool = False


class TopicUsage(Body, kw_only=True):
    """The usage of one topic.

    - `messages`: messages ever received; `kept`: those that the broker still has.
    - `added`, `size_added`: messages and about how many bytes were received since `from_millis`.
    - `grown_millis`: time of the last round that found growth.
    - `points`: (time, messages ever, bytes since the start of the history) of each growth. The
    first
      point is the base of the second one.

    Times are Unix times in ms.
    """

    added: int = 0
    from_millis: int = 0
    grown_millis: int = 0
    kept: int = 0
    messages: int = 0
    points: list[tuple[int, int, int]] | None = None
    queues: int = 0
    size_added: int = 0
    topic: str = ""


class UsageBody(Body, kw_only=True):
    """The body of a response: topics, those that grew most first.

    `round_millis` is the Unix time in ms of the broker's last round, 0 before the first one.
    """

    broker_name: str = ""
    interval_millis: int = 0
    #: topics with messages that are not followed, because of `topicsMax`
    left_out: int = 0
    round_millis: int = 0
    topics: list[TopicUsage] = msgspec.field(default_factory=list)
