"""Generates a drill's history of any size with `spark.range`, with planted violations.

The drill has a master and two slaves. The master is killed in the middle, and nothing is sent while
it is away. Each send has a delivery to each of two groups and a reading from each of three nodes.
It also has about one row each of: a delayed message, its delivery, a poll of a group's offsets at a
node, and a lock call. `PLANTED` has the keys of the messages whose violations are planted, `COUNTS`
the number of violations of each promise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUEUES, WRITERS, TEAMS, NODES, LOCKED = 8, 40, 2, 3, 100
#: duration of the master's absence, in which nothing is sent
FAULT_MS = 8_000

LOST = (1_001, 2_002, 3_003)
OTHER_BODY = (4_004, 5_005)
NOT_DELIVERED = (6_006, 7_007, 8_008, 8_009)
SWAPPED = (9_001,)
OTHER_MESSAGE = (9_500, 9_600)
SLOW = (300, 301, 302, 303, 304)
EARLY = (50, 60)
NEVER_CAME = (70, 80, 90)


def _message(number: int) -> str:
    return f"m{number}"


def _delayed(number: int) -> str:
    return f"d{number}"


#: promise -> keys of its violations; `COUNTS` also has the violations without a key
PLANTED = {
    "acknowledged-survive": [*map(_message, LOST)],
    "nothing-unsent": [*map(_message, OTHER_BODY)],
    "everything-delivered": [*map(_message, NOT_DELIVERED)],
    # the message that was delivered before its predecessor in the queue
    "queue-order": [_message(SWAPPED[0])],
    "offsets-stable": [_message(number + QUEUES) for number in OTHER_MESSAGE],
    "waits-bounded": [*map(_message, SLOW)],
    "delay-kept": [*map(_delayed, (*EARLY, *NEVER_CAME))],
}
COUNTS = {
    "acknowledged-survive": len(LOST),
    "nothing-unsent": len(OTHER_BODY),
    "everything-delivered": len(NOT_DELIVERED),
    "queue-order": len(SWAPPED),
    # offsets with two messages, and for each lost message (three queues) a hole at each node
    "offsets-stable": len(OTHER_MESSAGE) + NODES * len(LOST),
    "commits-forward": 1,
    "logs-equal": 1,
    "one-master": 1,
    "locks-exclusive": 1,
    "waits-bounded": len(SLOW),
    "delay-kept": len(EARLY) + len(NEVER_CAME),
    "progress-forward": 0,
    "recovers": 0,
}


def write(spark: Any, sends: int, path: Path) -> int:
    """Write the history as Parquet files under `path`; return the number of rows."""
    middle_ms = sends // 2
    end_ms = sends + FAULT_MS
    parts = [
        _sends(sends, middle_ms),
        _deliveries(sends, middle_ms),
        _reads(sends, end_ms),
        _delays(sends, middle_ms),
        _dues(sends, middle_ms),
        _committed(sends, middle_ms),
        _locks(sends),
        _nodes(sends, middle_ms, end_ms),
        _events(middle_ms, end_ms),
    ]
    # Rows of the same millisecond have this order in the history.
    made = " UNION ALL ".join(f"SELECT {place} AS place, * FROM ({part})" for place, part in enumerate(parts))
    numbered = f"""
        SELECT complete_ms * 1000000 + place * 100000 + nr AS op, client, kind, key, value, invoke_ms, complete_ms, outcome,
          'broker-a' AS broker, bigint(queue) AS queue, offset, extra FROM ({made})
    """
    spark.sql(numbered).write.parquet(str(path))
    return int(spark.read.parquet(str(path)).count())


def _at(middle_ms: int, number: str = "id") -> str:
    """Return SQL for the time of a send: one per millisecond, none during the fault."""
    return f"CASE WHEN {number} < {middle_ms} THEN {number} ELSE {number} + {FAULT_MS} END"


def _in(numbers: tuple[int, ...], column: str = "id") -> str:
    return f"{column} IN ({', '.join(map(str, numbers))})"


def _sends(sends: int, middle_ms: int) -> str:
    return f"""
        SELECT 0L AS nr, concat('writer-', id % {WRITERS}) AS client, 'send' AS kind, concat('m', id) AS key,
          hex(hash(id)) AS value, at AS invoke_ms, at + CASE WHEN {_in(SLOW)} THEN 6000 ELSE 3 END AS complete_ms,
          'ok' AS outcome, CAST(id % {QUEUES} AS int) AS queue, id DIV {QUEUES} AS offset,
          '{{"status": "SEND_OK", "timeout_ms": 3000}}' AS extra
        FROM (SELECT id, {_at(middle_ms)} AS at FROM range({sends}))
    """


def _deliveries(sends: int, middle_ms: int) -> str:
    # The swapped message and its successor in the queue are delivered in the wrong order.
    first, second = SWAPPED[0], SWAPPED[0] + QUEUES
    swapped = f"CASE WHEN team = 0 AND id = {first} THEN {second} WHEN team = 0 AND id = {second} THEN {first} ELSE id END"
    return f"""
        SELECT team AS nr, concat('consumer-', team) AS client, 'deliver' AS kind, concat('m', id) AS key,
          CASE WHEN team = 0 AND {_in(OTHER_BODY)} THEN 'other' ELSE hex(hash(id)) END AS value,
          at + 5 AS invoke_ms, at + 5 AS complete_ms, 'ok' AS outcome, CAST(id % {QUEUES} AS int) AS queue,
          id DIV {QUEUES} AS offset, concat('{{"group": "team-', team, '", "ordered": true}}') AS extra
        FROM (SELECT *, {_at(middle_ms, "turn")} AS at FROM (SELECT *, {swapped} AS turn FROM (
          SELECT id DIV {TEAMS} AS id, id % {TEAMS} AS team FROM range({sends} * {TEAMS}))))
        WHERE NOT (team = 1 AND {_in(NOT_DELIVERED)})
    """


def _reads(sends: int, end_ms: int) -> str:
    # A slave has another message at the offset.
    seen = f"CASE WHEN node = 2 AND {_in(OTHER_MESSAGE)} THEN id + {QUEUES} ELSE id END"
    return f"""
        SELECT node * 20000 + id % 20000 AS nr, concat('broker-a-', node) AS client, 'read' AS kind,
          concat('m', seen) AS key,
          hex(hash(seen)) AS value, {end_ms} + 9000 + id DIV 20000 AS invoke_ms,
          {end_ms} + 9000 + id DIV 20000 AS complete_ms, 'ok' AS outcome, CAST(id % {QUEUES} AS int) AS queue,
          id DIV {QUEUES} AS offset, '{{}}' AS extra
        FROM (SELECT *, {seen} AS seen FROM (
          SELECT id DIV {NODES} AS id, id % {NODES} AS node FROM range({sends} * {NODES})))
        WHERE NOT {_in(LOST)}
    """


def _delays(sends: int, middle_ms: int) -> str:
    return f"""
        SELECT 0L, 'delayer', 'delay', concat('d', id), hex(hash(id)), at, at + 3, 'ok', -1, -1L,
          concat('{{"status": "SEND_OK", "level": 1, "delay_ms": 1000, "due_ms": ', at + 1000, '}}')
        FROM (SELECT id, {_at(middle_ms)} AS at FROM range({sends}))
    """


def _dues(sends: int, middle_ms: int) -> str:
    late = f"at + CASE WHEN {_in(EARLY)} THEN 900 ELSE 1010 END"
    return f"""
        SELECT 0L, 'consumer-d', 'due', concat('d', id), hex(hash(id)), {late}, {late}, 'ok',
          CAST(id % {QUEUES} AS int), id DIV {QUEUES}, concat('{{"group": "team-d", "stored_ms": ', {late}, '}}')
        FROM (SELECT id, {_at(middle_ms)} AS at FROM range({sends})) WHERE NOT {_in(NEVER_CAME)}
    """


def _committed(sends: int, middle_ms: int) -> str:
    """Return rows of polls, every 40 ms at each node; one committed offset decreases by 1, once."""
    places = NODES * TEAMS * QUEUES
    held = f"at DIV {QUEUES} - CASE WHEN place = 5 AND step = 100 THEN 10 ELSE 0 END"
    return f"""
        SELECT place AS nr, concat('broker-a-', place % {NODES}), 'committed',
          concat('team-', place DIV {NODES} % {TEAMS}), '', at, at, 'ok',
          CAST(place DIV {NODES * TEAMS} AS int), {held}, '{{"boot": "1"}}'
        FROM (SELECT id % {places} AS place, id DIV {places} AS step, {_at(middle_ms, f"(id DIV {places}) * 40")} AS at
          FROM range({sends} DIV 40 * {places}))
    """


def _locks(sends: int) -> str:
    """Return rows of lock renewals, every second; one queue's lock is granted twice, once."""
    return f"""
        SELECT place AS nr, concat('member-', CASE WHEN place = 7 AND step = 10 THEN 1 ELSE 0 END), 'lock',
          concat('locked-', place DIV {QUEUES}), '', at, at + 2, 'ok', CAST(place % {QUEUES} AS int), -1L,
          concat('{{"node": "broker-a-0", "granted_until": ', at + 60000, '}}')
        FROM (SELECT id % {LOCKED * QUEUES} AS place, id DIV {LOCKED * QUEUES} AS step,
          (id DIV {LOCKED * QUEUES}) * 1000 AS at FROM range({sends} DIV 1000 * {LOCKED * QUEUES}))
    """


def _nodes(sends: int, middle_ms: int, end_ms: int) -> str:
    """Return what the three nodes report: their roles, and at the end their queues and logs."""
    queue_ends = f"""
        SELECT {QUEUES} * node + queue AS nr, concat('broker-a-', node), 'end', '', '', {end_ms} + 60000, {end_ms} + 60000,
          'ok', CAST(queue AS int), {sends} DIV {QUEUES}, concat('{{"offset_min": 0, "role": "', role, '"}}')
        FROM (SELECT id % {QUEUES} AS queue, id DIV {QUEUES} AS node,
          CASE WHEN id < {QUEUES} THEN 'master' ELSE 'slave' END AS role FROM range({NODES * QUEUES}))
    """
    looks = f"""
        SELECT 90L, 'broker-a-0', 'node', '', '', at, at, 'ok', -1, -1L, '{{"role": "master", "in_sync": 3}}'
        FROM (SELECT {_at(middle_ms, "id * 100")} AS at FROM range({sends} DIV 100))
    """
    pieces = f"""
        SELECT id AS nr, concat('broker-a-', id % {NODES}), 'log', '',
          CASE WHEN id = 100 THEN 'other' ELSE hex(hash(id DIV {NODES})) END, {end_ms} + 60001, {end_ms} + 60001, 'ok', -1,
          id DIV {NODES} * 65536,
          concat('{{"size": 65536, "role": "', CASE id % {NODES} WHEN 0 THEN 'master' ELSE 'slave' END, '"}}')
        FROM range(900)
    """
    said = []
    for node in range(NODES):
        role = "master/online" if node == 0 else "slave/offline"
        for at_ms in (0, middle_ms, end_ms):
            boot = 2 if node == 0 and at_ms == end_ms else 1
            said.append((node, role, at_ms, boot, "[0, 1, 2]", 0))
    # a slave that acts for a moment of the fault, although it sees a smaller broker id
    said.append((1, "acting/offline", middle_ms + 2_000, 1, "[0, 1, 2]", middle_ms + 2_000))
    roles = " UNION ALL ".join(
        f"""SELECT {70 + node}L, 'broker-a-{node}', 'role', '{role.partition("/")[0]}', '{role}', {at_ms}L, {at_ms}L, 'ok',
          -1, -1L, '{{"members": {members}, "broker_id": {node}, "boot": "{boot}", "since": {since}}}'"""
        for node, role, at_ms, boot, members, since in said
    )
    return f"{queue_ends} UNION ALL {looks} UNION ALL {pieces} UNION ALL {roles}"


def _events(middle_ms: int, end_ms: int) -> str:
    begins = '{"harm": "kill", "node": "broker-a-0", "role": "master"}'
    told = (
        ("load begins", 0, "{}"),
        ("fault begins", middle_ms + 100, begins),
        ("fault bites", middle_ms + 200, "{}"),
        ("fault ends", middle_ms + FAULT_MS - 200, "{}"),
        ("load ends", end_ms + 5_000, "{}"),
    )
    return " UNION ALL ".join(
        f"SELECT 99L, 'drill', 'event', '{key}', '', {at_ms}L, {at_ms}L, 'ok', -1, -1L, '{extra}'"
        for key, at_ms, extra in told
    )
