"""The properties of a sent message as bytes: what is special, and what follows the unique id.

Both are looked up without decoding: `send.py` does it per message, `batch_shape.py` per batch.
"""

import re
from functools import lru_cache

from rmqkit.wire import properties as props
from rmqkit.wire.javahash import tags_code_of

#: names of special properties, with which a send leaves the fast path: the broker sets them itself,
#: refuses them, or they change the put
SPECIAL = re.compile(
    rb"[\x02](?:DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG|MSG_REGION|TRACE_ON|CLUSTER|POP_CK|WAIT"
    rb"|INNER_NUM|INNER_BASE|INNER_MULTI_DISPATCH|__CRC32#)\x01"
).search
PLAIN_WAIT = b"\x02WAIT\x01true\x02"
TAGS = b"\x02TAGS\x01"
UNIQ = b"\x02UNIQ_KEY\x01"
UNIQ_PAIR = UNIQ[1:]
UNIQ_SIZE = len(UNIQ_PAIR)
#: bytes; longer properties behind a unique id are not cached
BEHIND_SIZE_MAX = 128


@lru_cache(maxsize=1024)
def behind_unique(behind: bytes) -> tuple[bytes, int] | None:
    """Return the properties behind a unique id as stored, and the tag code; None if one is special.

    Cached: Java clients write the unique id first, and the properties behind it are usually the
    same from one message to the next.
    """
    text = (b"\x02" + behind).replace(PLAIN_WAIT, b"\x02", 1)
    if text[-1] != 2 or SPECIAL(text):
        return None
    return text, tags_code_of(props.find(text, b"TAGS"))
