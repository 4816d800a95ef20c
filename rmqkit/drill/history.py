"""The history of a drill: everything that clients, nodes and the drill itself did and saw, as rows.

Promises are checked against these rows and nothing else. The fields of a row:

    op, client, kind, key, value, invoke_ms, complete_ms, outcome, broker, queue, offset, extra

- `op` is the number of the row, from 0.
- `outcome` is ok, fail (it certainly did not happen) or unknown (it may have happened, for instance
  a send that timed out).
- Times are milliseconds since the drill began, on one clock.
- `broker` is a broker *name*. Where one replica is meant, `extra["node"]` names it.

The kinds of rows:

    send       a producer sent message `key`; if ok, `queue` and `offset` are its position;
               extra: status, timeout_ms, error
    deliver    a consumer received message `key`; extra: group
    committed  the offset that a node (`client`) holds for group `key`; -1: it no longer has one;
               extra: boot (identifies one run of the node)
    node       the state that a node (`client`) reports; extra: role, state, in_sync, gap, end,
               boot; in controller mode also epoch, and confirm (its confirm offset)
    probe      a read as a new client would do it now, by the current route;
               extra: node and broker_id that were read from
    read       the last reading found message `key` at `offset` of `queue` on node `client`
    end        the last reading of one queue of a node is complete: `offset` is one past the last
               message; extra: offset_min
    log        bytes [offset, offset + extra.size) of the commit log of node `client` have the
               checksum `value`
    delay      as `send`, for a delayed message; extra: level, delay_ms, due_ms (invoke_ms +
               delay_ms: the earliest time at which it may be delivered)
    due        a consumer received the delayed message `key`; extra: group, stored_ms (when that
               copy was stored); if an acting master put it on another broker, also
               escaped_from ("broker-a:SCHEDULE:2:17") and escaped_by
    lock       member `client` of group `key` asked for the lock of a queue; fail: it was refused;
               extra: node (the broker that was asked), granted_until (when the lease ends, at the
               earliest)
    unlock     the member released the lock; extra: node
    role       the role that a node (`client`) reports: `value` is for instance "acting/online"; it
               is "" and the outcome is fail if the node did not answer; extra: members (ids that it
               sees alive), broker_id, why, boot, since (ms, of the last change), and in controller
               mode epoch (the one in which it has this role). There is a row
               for the first and the last poll of each state (`roles.py`)
    epoch      the log of node `client` has the bytes [extra.begin, extra.end) with the checksum
               `value` under epoch `key`, which starts at `offset`; extra: boot
    route      what a name server (`client`) returns for a broker group: `key` is the node with id
               0, `value` the ids that it lists; extra: members (the same ids), writable. There is
               a row for each change
    event      an event of the timeline: `key` is its name, `value` has details

The load of timers, transactions and pop (`Plan.services`) has rows of its own:

    timer      as `delay`, for a message with a due time; extra: delay_ms, due_ms (the earliest time
               at which it may be delivered), handle (what a recall names), status, error
    recall     the producer asked to recall timer `key`; extra: due_ms, error. ok: the broker
               confirmed it
    timer-due  as `due`, for a timer
    half       as `send`, for a half message; extra: transaction (its id), local (what the local
               transaction says: commit, rollback, unknown, or dies: the producer ends before it
               says anything), decision (commit or rollback: what the transaction's record says, and
               so every answer to a check), status, error
    decide     a producer reported the outcome `value` (commit, rollback or unknown) of transaction
               `key`; extra: by (end, or check: the answer to a broker's question), node, error. ok:
               the broker confirmed it
    visible    a consumer received the transaction message `key`; extra: group, stored_ms,
               escaped_from, escaped_by
    popped     member `client` popped message `key`; extra: group, topic (of the queue: the topic or
               a retry topic), node (the broker that gave it), pop_ms and invisible_ms (no other
               member may get the message from pop_ms until invisible_ms later), attempt (how often
               it was redelivered), handle
    pop        member `client` asked for messages and got no answer (unknown). The broker may have
               popped messages that nobody received; extra: group, node, error
    acked      the member acked what it popped; extra: handle, node, error

Histories are stored as JSON lines, one row a line, and also as Parquet if pyarrow is installed.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
#: kinds of timers, transactions and pop
SERVICE_KINDS = (
    "timer",
    "recall",
    "timer-due",
    "half",
    "decide",
    "visible",
    "popped",
    "acked",
)
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
    "epoch",
    "route",
    "event",
    "pop",
    *SERVICE_KINDS,
)
#: kinds whose `key` is a message
OF_MESSAGES = ("send", "deliver", "read", "delay", "due", *SERVICE_KINDS)

#: names of events of the timeline, in their usual order
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
CHOSEN = "another broker is elected"
SERVES = "the elected broker serves"
SLAVE_READ = "first read served from a slave"
LOCK_GRANTED = "first lock granted by another broker"
DELAY_DELIVERED = "first delayed message released by another broker"
LATE_READ = "a group that came after the fault reads"
TIMER_DELIVERED = "first timer released by another broker"
CHECKED = "first transaction resolved by another broker"
ACK_ACCEPTED = "first pop ack accepted by another broker"
#: the end of one fault of a series
STEP_ENDS = "fault of a series ends"
FAULT_ENDS = "fault ends"
NODE_BACK = "node is back"
#: stages of a return
PRE_ONLINE_DONE = "pre-online is done"
REGISTERED = "a name server lists the node again"
FOLLOWS_AGAIN = "the node has a role again"
FIRST_SEND_AGAIN = "first send acknowledged again"
IN_SYNC_AGAIN = "in sync again"
LOAD_ENDS = "load ends"


class HistoryRow(NamedTuple):
    """One row; the head of this module describes the fields."""

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
    def status(self) -> str:
        """Return the status of an acknowledged send, for instance SEND_OK; otherwise ""."""
        return str(self.extra.get("status", ""))


Row = HistoryRow  # the former name, which promises of plug-ins import


class History:
    """Rows in the order in which they were added.

    Any thread may call `add`. Use the views (`by_kind` and the other properties) once no thread
    adds rows any more.
    """

    def __init__(self, rows: Iterable[HistoryRow] = ()) -> None:
        self.rows = list(rows)
        self._guard = threading.Lock()
        #: what `view` has computed from the first `_viewed` rows, by its function
        self._views: dict[Callable[[History], Any], Any] = {}
        self._viewed = 0
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
        """Append one row and return it. `complete_ms` defaults to `invoke_ms`."""
        done_ms = invoke_ms if complete_ms is None else complete_ms
        with self._guard:
            row = HistoryRow(
                len(self.rows), client, kind, key, value, invoke_ms, done_ms, outcome, broker, queue, offset, extra
            )
            self.rows.append(row)
        if self.on_row is not None:
            self.on_row(row)
        return row

    # --- views: computed on access, and computed again if rows were added since

    def view(self, make: Callable[["History"], T]) -> T:
        """Return `make(self)`, computed once for the present rows.

        The caller must not change it.
        """
        if self._viewed != len(self):
            self._views, self._viewed = {}, len(self)
        views = self._views  # if a row is added meanwhile, the next access finds other ones
        if make not in views:
            views[make] = make(self)
        found: T = views[make]
        return found

    @property
    def by_kind(self) -> Mapping[str, list[HistoryRow]]:
        """Return kind → rows. Every kind of `KINDS` is a key."""
        return self.view(_by_kind)

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
        return self.view(_events)

    @property
    def last_ms(self) -> int:
        """Return when the last row was completed, in ms; 0 without rows."""
        return self.view(_last_ms)

    def event_ms(self, key: str) -> int | None:
        """Return the time of the first event with this name, in ms; None if there is none."""
        return next((row.invoke_ms for row in self.events if row.key == key), None)

    def story(self, key: str) -> list[HistoryRow]:
        """Return all rows about a message and all events of the timeline, in order of time."""
        return sorted((*self.view(_by_message).get(key, ()), *self.events), key=lambda row: (row.complete_ms, row.op))


def _by_kind(history: History) -> dict[str, list[HistoryRow]]:
    kinds: dict[str, list[HistoryRow]] = {kind: [] for kind in KINDS}
    for row in history.rows[:]:
        kinds.setdefault(row.kind, []).append(row)
    return kinds


def _by_message(history: History) -> dict[str, list[HistoryRow]]:
    messages: dict[str, list[HistoryRow]] = {}
    for kind in OF_MESSAGES:
        for row in history.by_kind[kind]:
            messages.setdefault(row.key, []).append(row)
    return messages


def _events(history: History) -> list[HistoryRow]:
    return sorted(history.by_kind["event"], key=lambda row: row.invoke_ms)


def _last_ms(history: History) -> int:
    return max([row.complete_ms for row in history.rows], default=0)


# --- files


def write_lines(history: History, path: Path) -> None:
    """Write one JSON object per line."""
    with open(path, "w", encoding="utf-8") as out:
        for row in history.rows:
            out.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")


def read_lines(path: Path) -> History:
    """Read a file of `write_lines`. Raises OSError, or ValueError for an invalid line."""
    return History(rows_of_lines(path))


def rows_of_lines(path: Path) -> Iterator[HistoryRow]:
    """Yield the rows of a file of `write_lines`. Raises as `read_lines`."""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield HistoryRow(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number} is not a row of a history: {error}") from None
