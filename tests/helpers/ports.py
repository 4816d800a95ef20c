"""Blocks of ports for clusters that a test starts by number.

They lie below the ports that systems choose for outgoing connections (32768 and up on Linux).
Otherwise such a connection could take a port of a node that is being restarted. Each worker of a
test run has its own range: two workers that search at the same time would find the same free block.

A cluster takes its ports in several calls, and its nodes open them later. Until then the ports look
free. So the last `REMEMBERED` ports are not given again.
"""

import random
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, closing

from tests.helpers import workers

BASES = range(11_000, 30_000)
HOST = "127.0.0.1"
#: more than the largest block (162) and the ports of a whole cluster
REMEMBERED = 512
_given: deque[int] = deque(maxlen=REMEMBERED)


def free_base(offsets: Iterable[int], hosts: Iterable[str] = (HOST,)) -> int:
    """Return a port such that its sum with each offset is free on every host.

    The ports stay free unless a process asks for one by number.
    """
    offsets = sorted(offsets)
    wanted = [(host, offset) for host in hosts for offset in offsets]
    share = workers.share_of(BASES)
    bases = range(share.start - min(offsets[0], 0), share.stop - max(offsets[-1], 0))
    for _ in range(200):
        base = random.choice(bases)
        ports = [base + offset for offset in offsets]
        if not set(_given).isdisjoint(ports):
            continue
        with ExitStack() as held:
            if all(_free(held, (host, base + offset)) for host, offset in wanted):
                _given.extend(ports)
                return base
    raise RuntimeError("no free ports")


def _free(held: ExitStack, address: tuple[str, int]) -> bool:
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        held.enter_context(closing(socket.create_server(address, family=family)))
    except OSError:
        return False
    return True
