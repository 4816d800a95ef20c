"""Blocks of ports for clusters that a test starts by number.

They lie below the ports that systems choose for outgoing connections (32768 and up on Linux).
Otherwise such a connection could take a port of a node that is being restarted. Each worker of a
test run has its own range: two workers that search at the same time would find the same free block.

A cluster takes its ports in several calls, and opens them later. So ports that were given shortly
before are not given again, although they still look free.
"""

import random
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, closing

from tests.helpers import workers

BASES = range(11_000, 30_000)
HOST = "127.0.0.1"
#: ports given last: enough for the largest block (162) and for all nodes of a group
_GIVEN: deque[int] = deque(maxlen=512)


def free_base(offsets: Iterable[int], hosts: Iterable[str] = (HOST,)) -> int:
    """Return a port such that its sum with each offset is free on every host.

    The ports stay free unless a process asks for one by number. None of them was among the last
    512 that this process was given.
    """
    offsets = sorted(offsets)
    wanted = [(host, offset) for host in hosts for offset in offsets]
    share = workers.share_of(BASES)
    bases = range(share.start - min(offsets[0], 0), share.stop - max(offsets[-1], 0))
    for _ in range(200):
        base = random.choice(bases)
        ports = [base + offset for offset in offsets]
        if any(port in _GIVEN for port in ports):
            continue
        with ExitStack() as held:
            if all(_free(held, (host, base + offset)) for host, offset in wanted):
                _GIVEN.extend(ports)
                return base
    raise RuntimeError("no free ports")


def _free(held: ExitStack, address: tuple[str, int]) -> bool:
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        held.enter_context(closing(socket.create_server(address, family=family)))
    except OSError:
        return False
    return True
