"""Clusters that clients are tested against, behind proxies that record request codes.

The nodes listen on 127.0.0.2 and advertise 127.0.0.1, where proxies listen on the same ports. So
every address that a client learns leads through a proxy. The proxies report to a `Ledger`
(`ledger.py`). On a machine without 127.0.0.2 the nodes listen on 127.0.0.1 and nothing is recorded.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.helpers.ports import free_base

from . import apache
from .ledger import Ledger
from .tape import Proxy

INSIDE = "127.0.0.2"
#: Port offsets of `cluster up` from its base port: the name server at 0, the broker at P = 10, its
#: VIP port at P-2. P+1 is the HA port, which needs no proxy.
_PORTS = {"nameserver": 0, "vip": 8, "broker": 10}
_HA_PORT = 11


#: Transactions are checked soon, on either broker. Apache's also asks about decided halves whose op
#: is not written yet, so ops are written before that.
_CHECKS = {"transactionTimeOut": "2000", "transactionCheckInterval": "1000", "transactionOpBatchInterval": "200"}
#: Tracing is off by default. Short-lived clients leave traces only if the trace topic exists.
OUR_SETTINGS = {"traceTopicEnable": "true", **_CHECKS}
#: Apache's broker has the filter and the trace topic off by default. The long queue wait avoids
#: refusals when a small machine is busy.
_APACHE_ON = {"enablePropertyFilter": "true", "traceTopicEnable": "true", "waitTimeMillsInSendQueue": "10000", **_CHECKS}


class Target(NamedTuple):
    """A running cluster: its name server, its kind ("rmqkit" or "apache"), its ledger."""

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
    """Run one of our clusters, made by `rmqkit cluster up`, behind proxies."""
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
    """Run Apache's name server and broker behind proxies."""
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


def rmqkit(
    home: Path, *arguments: str, tls: str = "false", env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one `rmqkit` command with its state in `home`. `tls` is the value of RMQKIT_TLS."""
    return subprocess.run(
        [sys.executable, "-m", "rmqkit.cli.main", *arguments],
        env={**os.environ, "RMQKIT_HOME": str(home), "RMQKIT_TLS": tls, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
