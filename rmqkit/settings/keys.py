"""The whole table: every key by kind of node, its other spellings, and the nearest key to a mistyped one.

`ROWS[kind][key]` is the row. A key of both kinds has a row for each, and they may differ (`listenPort`). Other
spellings come from Apache's earlier releases (`maped…` for `mapped…`) and from the names that Java prints for
fields (`isScanAvailableNameSrv`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rmqkit.settings import (
    broker_keys,
    feature_keys,
    message_keys,
    nameserver_keys,
    network_keys,
    observe_keys,
    own_keys,
    replication_keys,
    store_keys,
)
from rmqkit.settings.table import Row

Kind = Literal["broker", "nameserver"]
KINDS: tuple[Kind, ...] = ("broker", "nameserver")
KIND_NAMES: dict[Kind, str] = {"broker": "broker", "nameserver": "name server"}


def by_key(rows: Iterable[Row]) -> dict[str, Row]:
    table: dict[str, Row] = {}
    for row in rows:
        assert row.key not in table, row.key
        table[row.key] = row
    return table


BROKER = (
    broker_keys.ROWS
    + message_keys.ROWS
    + network_keys.BROKER_ROWS
    + store_keys.ROWS
    + own_keys.BROKER_ROWS
    + observe_keys.BROKER_ROWS
    + replication_keys.ROWS
    + feature_keys.ROWS
    + network_keys.ROWS
    + own_keys.ROWS
)
NAMESERVER = nameserver_keys.ROWS + observe_keys.NAMESERVER_ROWS + network_keys.ROWS + own_keys.ROWS

ROWS: dict[Kind, dict[str, Row]] = {"broker": by_key(BROKER), "nameserver": by_key(NAMESERVER)}


def other_spellings() -> dict[str, str]:
    """Spelling -> key. `maped` and `mapped` stand for each other wherever a key has either."""
    spellings = {
        "serverLoadBalancerEnabled": "serverLoadBalancerEnable",
        "memTableFlushInterval": "memTableFlushIntervalMs",
        "inBrokerContainer": "isInBrokerContainer",
        "brokerContainer": "isBrokerContainer",
        "scanAvailableNameSrv": "isScanAvailableNameSrv",
        "processReadEvent": "isProcessReadEvent",
    }
    for table in ROWS.values():
        for key in table:
            for one, other in (("mapped", "maped"), ("Mapped", "Maped"), ("maped", "mapped"), ("Maped", "Mapped")):
                if one in key:
                    spellings[key.replace(one, other)] = key
    return spellings


SPELLINGS: dict[str, str] = other_spellings()


def find(kind: Kind, written: str) -> Row | None:
    """The row of a key as it was written, None when this kind of node has no such key."""
    return ROWS[kind].get(SPELLINGS.get(written, written))
