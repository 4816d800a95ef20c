"""The parts of the audit that need a state machine: Python steps over the rows of a run or a queue.

They call the same functions as the in-process checkers.

- `context` reads the events, roles and node polls of one run. There are few of them, however many
  messages were sent. It finds the fault, which node served a broker group when, and which intervals
  excuse what.
- `leases` reads the lock calls of one queue.
- `services` judges timers, transactions, pop and elections of one run. Only runs that have them
  are read, with all of their sends, so such a run must fit into the memory of a worker.

Everything else that has one row per message is left to SQL.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rmqkit.drill import history as names
from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Judgement, Promise
from rmqkit.drill.promises.delays import CLOCK_JUMPS, allowed_again
from rmqkit.drill.promises.elections import ConfirmForward, OneMasterPerEpoch
from rmqkit.drill.promises.facts import allowed_ahead, fault_of, nodes_of, unfinished
from rmqkit.drill.promises.heads import broken_times, fault_windows, heads
from rmqkit.drill.promises.locks import ObservedLease
from rmqkit.drill.promises.locks import leases as leases_of
from rmqkit.drill.promises.progress import changes_of, undisturbed_until_ms
from rmqkit.drill.promises.roles import SILENT
from rmqkit.drill.promises.services.pops import PopKept
from rmqkit.drill.promises.services.timers import TimerKept
from rmqkit.drill.promises.services.transactions import TransactionAtomic
from rmqkit.drill.promises.table import AS_ALONE, AS_UNSYNCED, cell
from rmqkit.drill.promises.waits import refusing

#: kind of a row that marks the end of the whole history, since the step gets only some kinds of
#: rows
LAST = "last"

STRETCH = "since_ms: bigint, until_ms: bigint"
CHANGE = (
    "number: int, broker: string, before: string, before_end_ms: bigint, after: string, begin_ms: bigint, "
    "sure_ms: bigint, calm_ms: bigint, what: string"
)
CONTEXT = (
    "run string, has_fault boolean, harm string, fault_node string, fault_broker string, hits_master boolean, "
    "fault_ms bigint, where_plain string, where_alone string, where_unsynced string, where_both string, "
    "bites_ms bigint, ended_ms bigint, "
    "load_ends_ms bigint, jumped_ms bigint, is_silent boolean, masters array<string>, slaves array<string>, unread string, "
    "ahead array<string>, refusing array<string>, served array<string>, "
    f"windows array<struct<{STRETCH}>>, allowed array<struct<{STRETCH}>>, "
    f"broken array<struct<node: string, {STRETCH}>>, changes array<struct<{CHANGE}>>"
)
_SCALARS = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.string()),
}


def _fields(ddl: str) -> list[tuple[str, pa.DataType]]:
    """Return the Arrow fields of a DDL text without structs."""
    return [(name.rstrip(":"), _SCALARS[kind]) for name, kind in (part.split() for part in ddl.rstrip(", ").split(", "))]


_NESTED = {
    "windows": pa.list_(pa.struct(_fields(STRETCH))),
    "allowed": pa.list_(pa.struct(_fields(STRETCH))),
    "broken": pa.list_(pa.struct(_fields(f"node: string, {STRETCH}"))),
    "changes": pa.list_(pa.struct(_fields(CHANGE))),
}


def _context_schema() -> pa.Schema:
    return pa.schema([*_fields(CONTEXT.partition("windows")[0]), *_NESTED.items()])


def _history(rows: Sequence[Mapping[str, Any]], last_ms: int) -> History:
    """Return the history of rows from Spark, which are unordered and have `extra` as JSON text.

    A row of kind LAST at `last_ms` ends it, since the whole history may end later than these rows.
    """
    made = []
    for each in rows:
        extra = json.loads(each["extra"] or "{}")
        made.append(HistoryRow(**{name: each[name] for name in HistoryRow._fields if name != "extra"}, extra=extra))
    made.sort(key=lambda row: row.op)
    return History([*made, HistoryRow(-1, "", LAST, "", "", last_ms, last_ms)])


def context(run: pa.Array, plan: pa.Array, last_ms: pa.Array, rows: pa.Array) -> pa.Array:
    """Return, for each run of the batch, a list with its one context."""
    made = []
    for name, text, end_ms, given in _groups(run, plan, last_ms, rows):
        made.append([{"run": name, **_context_values(_history(given, end_ms), Plan.from_json(json.loads(text)))}])
    return pa.array(made, pa.list_(pa.struct(_context_schema())))


def _groups(*columns: pa.Array) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _context_values(history: History, plan: Plan) -> dict[str, Any]:
    fault = fault_of(history)
    masters, slaves = nodes_of(history)
    served = heads(history)
    broken = broken_times(history)
    begins = [row for row in history.events if row.key == names.FAULT_BEGINS]
    values: dict[str, Any] = {
        "has_fault": fault is not None,
        "bites_ms": history.event_ms(names.FAULT_BITES),
        "ended_ms": history.event_ms(names.FAULT_ENDS),
        "load_ends_ms": history.event_ms(names.LOAD_ENDS),
        "jumped_ms": history.event_ms(CLOCK_JUMPS),
        "is_silent": fault is not None and len(begins) == 1 and fault.hits_master and fault.harm in SILENT,
        "masters": masters,
        "slaves": slaves,
        "unread": unfinished(history, masters) if masters else "no master was read",
        "ahead": allowed_ahead(history, plan),
        "refusing": refusing(history, plan),
        "served": [head.node for found in served.values() for head in found],
        "windows": _intervals(fault_windows(history)),
        "allowed": _intervals(allowed_again(history, plan)),
        "broken": [{"node": node, **each} for node, found in broken.items() for each in _intervals(found)],
        "changes": [
            {
                "number": number,
                "broker": each.broker,
                "before": each.before.node,
                "before_end_ms": each.before.end_ms,
                "after": each.after.node,
                "begin_ms": each.after.begin_ms,
                "sure_ms": each.sure_ms(broken),
                "calm_ms": undisturbed_until_ms(history, each, broken),
                "what": each.what,
            }
            for number, each in enumerate(changes_of(served))
        ],
    }
    if fault is not None:
        values |= {
            "harm": str(fault.harm),
            "fault_node": fault.node,
            "fault_broker": fault.broker,
            "hits_master": fault.hits_master,
            "fault_ms": fault.begin_ms,
            "where_plain": str(cell(plan.mode, fault.harm).where),
            "where_alone": str(cell(plan.mode, fault.harm, AS_ALONE[0]).where),
            "where_unsynced": str(cell(plan.mode, fault.harm, AS_UNSYNCED[0]).where),
            "where_both": str(cell(plan.mode, fault.harm, AS_UNSYNCED[0], copies=1).where),
        }
    return values


def _intervals(found: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"since_ms": since_ms, "until_ms": until_ms} for since_ms, until_ms in found]


# --- locks

LEASES = (
    "run string, group_name string, broker string, queue int, number int, op bigint, client string, node string, "
    "begin_ms bigint, end_ms bigint"
)
_LEASES = pa.schema(_fields(LEASES))


def leases(run: pa.Array, plan: pa.Array, last_ms: pa.Array, rows: pa.Array) -> pa.Array:
    """Return, for each queue of the batch, the leases that members certainly held, by begin time.

    `op` is that of the answer that granted the lease.
    """
    made = []
    for name, _plan, end_ms, given in _groups(run, plan, last_ms, rows):
        history = _history(given, end_ms)
        grants = {(row.client, row.complete_ms): row.op for row in history.rows if row.kind == "lock" and row.outcome == OK}
        made.append([_lease(name, number, lease, grants) for number, lease in enumerate(leases_of(history))])
    return pa.array(made, pa.list_(pa.struct(_LEASES)))


def _lease(run: str, number: int, lease: ObservedLease, grants: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    group_name, broker, queue = lease.place
    return {
        "run": run,
        "group_name": group_name,
        "broker": broker,
        "queue": queue,
        "number": number,
        "op": grants[lease.client, lease.begin_ms],
        "client": lease.client,
        "node": lease.node,
        "begin_ms": lease.begin_ms,
        "end_ms": lease.end_ms,
    }


# --- timers, transactions, pop

VIOLATION = "key: string, what: string, ops: array<bigint>"
SERVICES = f"run string, promise string, facts bigint, lacking string, broken bigint, told array<struct<{VIOLATION}>>"
#: the promises that only Python checks
SERVICE_PROMISES = (TimerKept, TransactionAtomic, PopKept, OneMasterPerEpoch, ConfirmForward)
#: kinds of rows that they read
SERVICE_ROWS = (*names.SERVICE_KINDS, "send", "read")
_VIOLATION = pa.struct([("key", pa.string()), ("what", pa.string()), ("ops", pa.list_(pa.int64()))])
_SERVICES = pa.schema([*_fields(SERVICES.partition("told")[0]), ("told", pa.list_(_VIOLATION))])


def services(run: pa.Array, plan: pa.Array, last_ms: pa.Array, rows: pa.Array) -> pa.Array:
    """Return, for each run of the batch, one finding for each promise of its services.

    `told` has the first violations, `broken` is the number of all.
    """
    made = []
    for name, text, end_ms, given in _groups(run, plan, last_ms, rows):
        history, of_run = _history(given, end_ms), Plan.from_json(json.loads(text))
        promises = [make() for make in SERVICE_PROMISES]
        made.append([_service(name, each, history, of_run) for each in promises if each.applies(of_run)])
    return pa.array(made, pa.list_(pa.struct(_SERVICES)))


def _service(run: str, promise: Promise, history: History, plan: Plan) -> dict[str, Any]:
    found = promise.check(history, plan)
    is_lacking = found.judgement is Judgement.INCONCLUSIVE
    return {
        "run": run,
        "promise": promise.name,
        "facts": found.facts,
        "lacking": found.why if is_lacking else "",
        "broken": found.counts.get("broken", 0),
        "told": [
            {"key": each.key, "what": each.what, "ops": [row.op for row in history.rows if _is_about(row, each.key)]}
            for each in found.broken
        ],
    }


def _is_about(row: HistoryRow, key: str) -> bool:
    return row.key == key and row.kind in SERVICE_ROWS
