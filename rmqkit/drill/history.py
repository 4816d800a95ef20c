"""The history of a drill: everything that was done and seen, as rows. Promises are checked over them and nothing else.

    op, client, kind, key, value, invoke_ms, complete_ms, outcome, broker, queue, offset, extra

`outcome` is ok, fail (it certainly did not happen) or unknown (it may have happened: a send that timed out). Times are
milliseconds since the drill began, on one clock. `broker` is a broker *name*; which replica is meant stands in
`extra["node"]`. The kinds:

    send       a producer sent message `key`; ok: `queue`, `offset` say where, extra: status, timeout_ms, error
    deliver    a consumer (extra: group) was given message `key`
    committed  what a node (`client`) holds as the offset of group `key`, -1: none any more; extra: boot, which run of it
    node       what a node (`client`) says of itself; extra: role, state, in_sync, gap, end, boot
    probe      a read as a new client would do it now: of whom (extra: node, broker_id), by the routes of that moment
    read       the last reading: message `key` stands at `offset` of `queue` on node `client`
    end        the last reading of one queue of a node is over: `offset` is one past the last, extra: offset_min
    log        bytes [offset, offset + extra.size) of the commit log of node `client` have the checksum `value`
    delay      as `send`, of a delayed message; extra: level, delay_ms, due_ms (invoke_ms + delay_ms: never before)
    due        a consumer (extra: group) was given the delayed message `key`; extra: stored_ms (when that copy was stored),
               and of one that an acting master has put elsewhere escaped_from ("broker-a:SCHEDULE:2:17"), escaped_by
    lock       member `client` of group `key` asked for the lock of a queue; fail: refused; extra: node (who was asked),
               granted_until (when the lease ends, at the earliest)
    unlock     it gave the lock back; extra: node
    role       what a node (`client`) says of its role: `value` is "acting/online", "" and fail: no answer; extra:
               members (ids it takes for alive), broker_id, why, boot, since (ms, of the last change). The first and
               the last look at each state (`roles.py`)
    route      what a name server (`client`) tells of a broker group: `key` is the node it shows as id 0, `value` the ids
               that it lists; extra: members (the same), writable. A row when that changes
    event      the time line: `key` says what, `value` more of it

Written as JSON lines, a row a line; as Parquet beside it when pyarrow is there.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
OUTCOMES = (OK, FAIL, UNKNOWN)
KINDS = (
    "send",
    "deliver",
    "committed",
    "node",
    "probe",
    "read",
    "end",
    "log",
    "delay",
    "due",
    "lock",
    "unlock",
    "role",
    "route",
    "event",
)

#: events of the time line, in the order in which they should come
LOAD_BEGINS = "load begins"
STEADY = "steady"
FAULT_BEGINS = "fault begins"
FAULT_BITES = "fault bites"
FIRST_FAILED_SEND = "first failed send"
#: stages of a takeover
NOTICED = "a name server lists the node no more"
ANNOUNCED = "the others know that it is gone"
ROUTE_CHANGED = "routes name another broker"
ACTS = "another broker acts for it"
SLAVE_READ = "first read served from a slave"
LOCK_GRANTED = "first lock granted by another broker"
DELAY_DELIVERED = "first delayed message released by another broker"
LATE_READ = "a group that came after the fault reads"
#: of a series of faults
STEP_ENDS = "fault of a series ends"
FAULT_ENDS = "fault ends"
NODE_BACK = "node is back"
#: stages of a return
PRE_ONLINE_DONE = "pre-online is done"
REGISTERED = "a name server lists the node again"
FIRST_SEND_AGAIN = "first send acknowledged again"
IN_SYNC_AGAIN = "in sync again"
LOAD_ENDS = "load ends"


class HistoryRow(NamedTuple):
    """See the head of this module."""

    op: int
    client: str
    kind: str
    key: str
    value: str
    invoke_ms: int
    complete_ms: int
    outcome: str = OK
    broker: str = ""
    queue: int = -1
    offset: int = -1
    extra: Mapping[str, Any] = {}

    @property
    def place(self) -> tuple[str, int]:
        """(broker, queue)."""
        return self.broker, self.queue

    @property
    def status(self) -> str:
        """Of a send that was answered: SEND_OK, FLUSH_SLAVE_TIMEOUT ...; "" otherwise."""
        return str(self.extra.get("status", ""))


Row = HistoryRow  # the former name, which promises of plug-ins import


class History:
    """Rows in the order in which they were completed. `add` may be called by any thread; the views are for afterwards."""

    def __init__(self, rows: Iterable[HistoryRow] = ()) -> None:
        self.rows = list(rows)
        self._guard = threading.Lock()
        self._kinds: dict[str, list[HistoryRow]] = {}
        self._kinds_of = -1
        self._messages: dict[str, list[HistoryRow]] = {}
        self._messages_of = -1
        #: called with each new row, in the thread that adds it
        self.on_row: Callable[[HistoryRow], None] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self,
        kind: str,
        *,
        client: str = "drill",
        key: str = "",
        value: str = "",
        invoke_ms: int,
        complete_ms: int | None = None,
        outcome: str = OK,
        broker: str = "",
        queue: int = -1,
        offset: int = -1,
        **extra: Any,
    ) -> HistoryRow:
        """Append one row. `complete_ms` is `invoke_ms` for what takes no time."""
        done_ms = invoke_ms if complete_ms is None else complete_ms
        with self._guard:
            row = HistoryRow(
                len(self.rows), client, kind, key, value, invoke_ms, done_ms, outcome, broker, queue, offset, extra
            )
            self.rows.append(row)
        if self.on_row is not None:
            self.on_row(row)
        return row

    # --- views: made when they are asked for, and again when rows have come since

    @property
    def by_kind(self) -> Mapping[str, list[HistoryRow]]:
        if self._kinds_of != len(self.rows):
            rows = self.rows[:]
            self._kinds = {kind: [] for kind in KINDS}
            for row in rows:
                self._kinds.setdefault(row.kind, []).append(row)
            self._kinds_of = len(rows)
        return self._kinds

    @property
    def sends(self) -> list[HistoryRow]:
        return self.by_kind["send"]

    @property
    def acknowledged(self) -> list[HistoryRow]:
        return [row for row in self.sends if row.outcome == OK]

    @property
    def deliveries(self) -> list[HistoryRow]:
        return self.by_kind["deliver"]

    @property
    def reads(self) -> list[HistoryRow]:
        return self.by_kind["read"]

    @property
    def events(self) -> list[HistoryRow]:
        return sorted(self.by_kind["event"], key=lambda row: row.invoke_ms)

    def event_ms(self, key: str) -> int | None:
        """When something of the time line happened first, None when it did not."""
        return next((row.invoke_ms for row in self.events if row.key == key), None)

    def _by_message(self) -> Mapping[str, list[HistoryRow]]:
        if self._messages_of != len(self.rows):
            self._messages = {}
            for kind in ("send", "deliver", "read", "delay", "due"):
                for row in self.by_kind[kind]:
                    self._messages.setdefault(row.key, []).append(row)
            self._messages_of = len(self.rows)
        return self._messages

    def story(self, key: str) -> list[HistoryRow]:
        """All that is known of a message, with the time line, in the order of time."""
        return sorted((*self._by_message().get(key, ()), *self.events), key=lambda row: (row.complete_ms, row.op))


# --- files


def write_lines(history: History, path: Path) -> None:
    """One JSON object a line."""
    with open(path, "w", encoding="utf-8") as out:
        for row in history.rows:
            out.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")


def read_lines(path: Path) -> History:
    """Raises OSError, or ValueError for lines that are no rows."""
    return History(_rows(path))


def _rows(path: Path) -> Iterator[HistoryRow]:
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield HistoryRow(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number} is no row of a history: {error}") from None


def write_parquet(history: History, path: Path) -> bool:
    """The same as a Parquet file; False when pyarrow is not installed. `extra` is JSON text there."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return False
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in history.rows] for name in HistoryRow._fields}
    columns["extra"] = [json.dumps(extra, ensure_ascii=False) for extra in columns["extra"]]
    pq.write_table(pa.table(columns), path, compression="zstd")
    return True
