"""The request of the plug-in: code 71001, sent to a broker.

Private codes of plug-ins stand from 70000 to 99999: Apache's go up to 5000 and from 200000 on.
"""

from typing import Annotated

import msgspec

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Ext

GET_USAGE = 71_001
TOP_MAX = 100_000


class GetUsageRequest(Ext, kw_only=True):
    """All fields may be absent: every topic, as far back as the history goes.

    `topic` is a name, or the beginning of names followed by `*`. `since_millis` is how far to look back from the broker's
    last round, `top` how many topics to tell of, those that grew most first. `system` takes in the broker's own topics.
    `points` asks for each step of growth and wants a whole topic name.
    """

    topic: str | None = None
    since_millis: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    top: Annotated[int, msgspec.Meta(ge=1, le=TOP_MAX)] | None = None
    system: bool = False
    points: bool = False


class TopicUsage(Body, kw_only=True):
    """`messages` ever, `kept` of them still there; `added` and about `size_added` bytes from `from_millis` on.

    `grown_millis` is when it last grew, as far as rounds tell. `points` are (time, messages ever, bytes since the
    accounting began), the first of them the one that the others grow from.
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
    """The answer: topics sorted by growth. `round_millis` is when the broker last looked, 0 when it has not yet."""

    broker_name: str = ""
    interval_millis: int = 0
    #: topics with messages that are over the limit of topics followed
    left_out: int = 0
    round_millis: int = 0
    topics: list[TopicUsage] = msgspec.field(default_factory=list)
