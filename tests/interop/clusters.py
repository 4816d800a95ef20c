"""The clusters that clients are tried against, with proxies before them that note which codes pass (`ledger.py`).

The nodes listen on 127.0.0.2 and call themselves 127.0.0.1, where the proxies listen on the same ports. So every address a
client is told leads through a proxy. Where a second loopback address does not exist, the nodes listen on 127.0.0.1 and
nothing is noted.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.helpers.ports import free_base

from . import apache
from .ledger import Ledger
from .tape import Proxy

INSIDE = "127.0.0.2"
#: what `cluster up` puts behind one base port: the name server, then ten further the broker with P-2 and P+1
_PORTS = {"nameserver": 0, "vip": 8, "broker": 10}
_HA_PORT = 11


#: what our cluster has off and the checks want: short-lived clients leave traces only in a topic that is there
#: Transactions are checked soon, on either broker. Apache's also asks about decided halves whose op
#: is not written yet, so ops are written before that.
_CHECKS = {"transactionTimeOut": "2000", "transactionCheckInterval": "1000", "transactionOpBatchInterval": "200"}
OUR_SETTINGS = {"traceTopicEnable": "true", **_CHECKS}
#: what Apache's broker has off unless asked and the checks want, and no refusals because a small machine is busy
_APACHE_ON = {"enablePropertyFilter": "true", "traceTopicEnable": "true", "waitTimeMillsInSendQueue": "10000", **_CHECKS}


class Target(NamedTuple):
    """A running cluster: where its name server is, whose it is ("rmqkit" or "apache"), and what passed."""

    namesrv: str
    kind: str
    ledger: Ledger


def can_note() -> bool:
    with closing(socket.socket()) as sock:
        try:
            sock.bind((INSIDE, 0))
        except OSError:
            return False
    return True


@contextmanager
def our_cluster(home: Path) -> Iterator[Target]:
    """A cluster as `rmqkit cluster up` makes it."""
    ledger = Ledger()
    with ExitStack() as stack:
        where: list[str] = ["--any-port"]
        if can_note():
            base = free_base((*_PORTS.values(), _HA_PORT), (apache.HOST, INSIDE))
            for link, port in _PORTS.items():
                proxy = Proxy(ledger, link, (apache.HOST, base + port), (INSIDE, base + port))
                stack.callback(proxy.close)
            where = ["--base-port", str(base), "--bind", INSIDE, "--advertise", apache.HOST]
        settings = [word for key, value in OUR_SETTINGS.items() for word in ("--set", f"{key}={value}")]
        up = rmqkit(home, "cluster", "up", "--replicas", "1", *where, *settings, "--json")
        try:
            if up.returncode:
                raise RuntimeError(f"cluster up: {up.stdout}\n{up.stderr}")
            yield Target(json.loads(up.stdout)["namesrv"], "rmqkit", ledger)
        finally:
            rmqkit(home, "cluster", "down", "--purge")


@contextmanager
def apache_cluster() -> Iterator[tuple[apache.ApacheCluster, Ledger]]:
    """Apache's name server and broker."""
    ledger = Ledger()
    with ExitStack() as stack:
        if not can_note():
            yield stack.enter_context(apache.ApacheCluster(broker_properties=_APACHE_ON)), ledger
            return
        ports = apache.free_ports()
        for link, port in zip(("nameserver", "broker"), ports, strict=True):
            stack.callback(Proxy(ledger, link, (apache.HOST, port), (INSIDE, port)).close)
        made = apache.ApacheCluster(bind=INSIDE, ports=ports, broker_properties=_APACHE_ON)
        yield stack.enter_context(made), ledger


def rmqkit(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One `rmqkit` command with its state in `home`."""
    return subprocess.run(
        [sys.executable, "-m", "rmqkit.cli.main", *arguments],
        env={**os.environ, "RMQKIT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
