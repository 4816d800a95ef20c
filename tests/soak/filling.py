"""Sends many messages quickly, by several processes with batches of about 512 KiB.

A body has its message's number and its own checksum, so that each row can be checked alone:

    16 digits of the number · 8 of the CRC-32 of the rest, all hexadecimal · random bytes

`python -m tests.soak.filling NAMESRV TOPIC FIRST COUNT SIZE SPREAD PATIENCE` is one of the
processes.
"""

import subprocess
import sys
import time
from random import Random
from typing import NamedTuple
from zlib import crc32

from rmqkit import Message, Producer
from rmqkit.errors import ClientError

HEAD_SIZE = 24
BATCH_SIZE = 524_288
#: maximum messages per batch, below the broker's limit
MESSAGES_MAX = 1000
#: minimum number of batches of a sender that spreads its sends over time
SPREAD_BATCHES = 40
_SOURCE_SIZE = 1 << 20


def body(number: int, payload: bytes) -> bytes:
    return b"%016x%08x%s" % (number, crc32(payload), payload)


class Through(NamedTuple):
    """How a sender spreads its sends over a fault.

    It sends small batches over `spread_s` seconds, and retries a refused batch for `patience_s`
    seconds. A retried message may be stored twice, at different offsets.
    """

    spread_s: float = 0.0
    patience_s: float = 0.0


AT_ONCE = Through()


def send(namesrv: str, topic: str, first: int, count: int, size: int, through: Through = AT_ONCE) -> None:
    """Send messages `first` to `first + count - 1` of `size` bytes.

    Raises ClientError if some were never acknowledged.
    """
    source = Random(first).randbytes(_SOURCE_SIZE + size)
    at_once = max(1, min(MESSAGES_MAX, BATCH_SIZE // size))
    if through.spread_s:
        at_once = max(1, min(at_once, count // SPREAD_BATCHES))
    begun_s = time.monotonic()
    with Producer("soak", namesrv=namesrv, send_msg_timeout_ms=20_000) as producer:
        for begin in range(first, first + count, at_once):
            messages = []
            for number in range(begin, min(begin + at_once, first + count)):
                at = number * 7919 % _SOURCE_SIZE
                messages.append(Message(topic, body(number, source[at : at + size - HEAD_SIZE]), tags="soak"))
            _send_batch(producer, messages, through.patience_s)
            ahead_s = begun_s + through.spread_s * (begin - first) / count - time.monotonic()
            time.sleep(max(0.0, ahead_s))


def _send_batch(producer: Producer, messages: list[Message], patience_s: float) -> None:
    until_s = time.monotonic() + patience_s
    while True:
        try:
            producer.send_batch(messages)
            return
        except ClientError:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.2)


def fill(
    namesrv: str, topic: str, count: int, size: int, *, first: int = 0, processes: int = 2, through: Through = AT_ONCE
) -> None:
    """Send with several processes. Raises RuntimeError with the output of the first that failed."""
    share = -(-count // processes)
    started = []
    for begin in range(first, first + count, share):
        numbers = [begin, min(share, first + count - begin), size, *through]
        command = [sys.executable, "-m", "tests.soak.filling", namesrv, topic, *map(str, numbers)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    said = [(process.communicate()[1], process.returncode) for process in started]
    failed = [text for text, code in said if code]
    if failed:
        raise RuntimeError(f"messages could not be sent: {failed[0][-2000:]}")


if __name__ == "__main__":
    send(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), Through(*map(float, sys.argv[6:8])))
