"""What `make interop` found out, kept in two files that are committed: `tried.json` and `features.json`.

`Ledger` stands behind proxies before a cluster (`tape.Proxy`) and notes, connection by connection, which request codes
passed and which of them were answered with success: SUCCESS (0), or a one-way request. Requests of servers to clients count
too. Our own frames call their language PYTHON; so `codes_of_others` and `codes_of_ours` tell a foreign client from our
tools, and a broker's connection to its name server is known by its registrations.

`features.json` has, for each client, the checks that passed by the feature they show. A test module says both with
`write_codes` and `write_checks` when all of its checks ran and passed; what other clients have in the files stays.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .tape import ONEWAY_FLAG, RESPONSE_FLAG, Seen

HERE = Path(__file__).parent
TRIED = HERE / "tried.json"
FEATURES_FILE = HERE / "features.json"

#: the rows of the first table of docs/compatibility.md, in its order
FEATURES = (
    "sync",
    "async",
    "one-way",
    "batch",
    "ordered",
    "tag",
    "SQL92",
    "broadcasting",
    "rebalance",
    "delay level",
    "transaction",
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
    """A watcher of proxies that keeps codes and forgets frames."""

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
        """What clients that are not ours asked or were asked with success."""
        return self._codes(ours=False)

    def codes_of_ours(self) -> list[int]:
        """The same of our own client."""
        return self._codes(ours=True)

    def never_answered(self) -> list[int]:
        """Codes that foreign clients sent and that never met success: what is missing, or what a check provokes."""
        with self._lock:
            links = [link for link in self._links.values() if not link.of_broker and link.language != OURS]
        return sorted({code for link in links for code in link.seen} - {code for link in links for code in link.passed})

    def _codes(self, *, ours: bool) -> list[int]:
        with self._lock:
            links = [link for link in self._links.values() if not link.of_broker and link.language is not None]
            return sorted({code for link in links if (link.language == OURS) == ours for code in link.passed})


def write_codes(client: str, codes: Iterable[int], path: Path = TRIED) -> None:
    """Sets what `client` tried with success; the other clients' rows stay."""
    tried = json.loads(path.read_text()) if path.exists() else {}
    tried[client] = sorted(set(codes))
    lines = ",\n".join(f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(tried[name])}" for name in sorted(tried))
    path.write_text("{\n" + lines + "\n}\n")


def write_checks(client: str, checks: Mapping[str, Iterable[str]], path: Path = FEATURES_FILE) -> None:
    """Sets which checks of `client` showed which feature. Raises ValueError for a feature that is no row."""
    unknown = set(checks) - set(FEATURES)
    if unknown:
        raise ValueError(f"no such feature: {', '.join(sorted(unknown))}")
    kept = json.loads(path.read_text())["clients"] if path.exists() else {}
    kept[client] = {name: list(checks[name]) for name in FEATURES if checks.get(name)}
    whole = {"features": list(FEATURES), "clients": {name: kept[name] for name in sorted(kept)}}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
