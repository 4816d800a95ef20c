"""Records the results of `make interop` in two committed files: `tried.json`, `features.json`.

`Ledger` receives the frames that proxies (`tape.Proxy`) see in front of a cluster. For each
connection it notes the request codes and which of them succeeded: a response SUCCESS (0), or a
one-way request. Requests from servers to clients count too. Our own frames have the language
PYTHON, by which `codes_of_others` and `codes_of_ours` separate foreign clients from our tools. A
broker's connection to its name server is recognised by its registrations.

`features.json` has, for each client, the passed checks by the feature they prove. A test module
calls `write_codes` and `write_checks` once all its checks ran and passed. Entries of other clients
stay unchanged.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.file_lock import file_lock

from .tape import ONEWAY_FLAG, RESPONSE_FLAG, Seen

HERE = Path(__file__).parent
TRIED = HERE / "tried.json"
FEATURES_FILE = HERE / "features.json"
#: two workers may end their modules at the same time
_LOCK = HERE / "driver" / "target" / "ledger.lock"

#: rows of the first table of docs/compatibility.md, in its order
FEATURES = (
    "sync",
    "async",
    "one-way",
    "batch",
    "BatchCQ",
    "ordered",
    "tag",
    "SQL92",
    "broadcasting",
    "rebalance",
    "delay level",
    "transaction",
    "timer",
    "pop",
    "retry → DLQ",
    "query by key and id",
    "offset reset",
    "request–reply",
    "trace",
)
OURS = "PYTHON"
#: REGISTER_BROKER, QUERY_DATA_VERSION and BROKER_HEARTBEAT: only brokers send these
_OF_BROKERS = frozenset((103, 322, 904))


@dataclass
class _Link:
    language: Any = None
    of_broker: bool = False
    under_way: dict[tuple[bool, int], int] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)


class Ledger:
    """A watcher of proxies that keeps request codes and discards the frames."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[int, _Link] = {}

    def opened(self) -> int:
        with self._lock:
            number = len(self._links) + 1
            self._links[number] = _Link()
            return number

    def saw(self, seen: Seen) -> None:
        head = seen.header
        with self._lock:
            link = self._links[seen.conn]
            if head["flag"] & RESPONSE_FLAG:
                code = link.under_way.pop((not seen.upward, head["opaque"]), None)
                if code is not None and head["code"] == 0:
                    link.passed.add(code)
                return
            if seen.upward:
                link.language = head.get("language")
                link.of_broker |= head["code"] in _OF_BROKERS
            link.seen.add(head["code"])
            if head["flag"] & ONEWAY_FLAG:
                link.passed.add(head["code"])
            else:
                link.under_way[seen.upward, head["opaque"]] = head["code"]

    def codes_of_others(self) -> list[int]:
        """Return the codes that foreign clients sent or received with success."""
        return self._codes(ours=False)

    def codes_of_ours(self) -> list[int]:
        """Return the codes that our own client sent or received with success."""
        return self._codes(ours=True)

    def never_answered(self) -> list[int]:
        """Return codes that foreign clients sent or received, but never with success.

        Either the cluster lacks them, or a check provokes the error.
        """
        with self._lock:
            links = [link for link in self._links.values() if not link.of_broker and link.language != OURS]
        return sorted({code for link in links for code in link.seen} - {code for link in links for code in link.passed})

    def _codes(self, *, ours: bool) -> list[int]:
        with self._lock:
            links = [link for link in self._links.values() if not link.of_broker and link.language is not None]
            return sorted({code for link in links if (link.language == OURS) == ours for code in link.passed})


def write_codes(client: str, codes: Iterable[int], path: Path = TRIED) -> None:
    """Set the codes that `client` used with success; other clients' rows stay."""
    with file_lock(_LOCK):
        _write_codes(client, codes, path)


def _write_codes(client: str, codes: Iterable[int], path: Path) -> None:
    tried = json.loads(path.read_text()) if path.exists() else {}
    tried[client] = sorted(set(codes))
    lines = ",\n".join(f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(tried[name])}" for name in sorted(tried))
    path.write_text("{\n" + lines + "\n}\n")


def write_checks(client: str, checks: Mapping[str, Iterable[str]], path: Path = FEATURES_FILE) -> None:
    """Set which checks of `client` proved which feature.

    Raises ValueError if a feature is not in FEATURES.
    """
    unknown = set(checks) - set(FEATURES)
    if unknown:
        raise ValueError(f"no such feature: {', '.join(sorted(unknown))}")
    with file_lock(_LOCK):
        _write_checks(client, checks, path)


def _write_checks(client: str, checks: Mapping[str, Iterable[str]], path: Path) -> None:
    kept = json.loads(path.read_text())["clients"] if path.exists() else {}
    kept[client] = {name: list(checks[name]) for name in FEATURES if checks.get(name)}
    whole = {"features": list(FEATURES), "clients": {name: kept[name] for name in sorted(kept)}}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
