"""Queries for the promises about takeovers: roles, lock leases, delayed messages and progress.

They find roles of brokers that overlap, leases that overlap, repeated copies of delayed messages,
and what a serving broker does not know. Each query gives the same judgement, in the same words, as
the checker of that name in `rmqkit.drill.promises`.

Some facts come from a state machine (`steps.py`): the leases of a queue, and which node served a
broker group when. `step` says so.
"""

from rmqkit.drill.promises.delays import EARLY_MS, ON_ITS_WAY_MS
from rmqkit.drill.promises.progress import LACKING, LATE_LOOK_MS, LOOK_MS, REWINDING
from rmqkit.spark.audit.query import Query

# A span is the interval in which a broker reported the same state: from the first answer that shows
# it to the last request that was answered with it. `place` numbers the spans of a run by begin
# time.
_SPANS = """
looked AS (
  SELECT *, struct(outcome, value, members, boot, since) AS state,
    lag(struct(outcome, value, members, boot, since)) OVER w AS before,
    first_value(struct(complete_ms, op)) OVER w AS node_first, first_value(broker) OVER w AS of_broker
  FROM roles WINDOW w AS (PARTITION BY run, client ORDER BY complete_ms, op)
), numbered AS (
  SELECT *, count_if(before IS NULL OR NOT (state <=> before))
    OVER (PARTITION BY run, client ORDER BY complete_ms, op) AS number
  FROM looked
), stretches AS (
  SELECT run, client AS node, number, min(node_first) AS node_first,
    min_by(struct(op, broker, outcome, value, members, broker_id, complete_ms), struct(complete_ms, op)) AS first,
    max_by(invoke_ms, struct(complete_ms, op)) AS last_ms
  FROM numbered GROUP BY run, client, number
), spans AS (
  SELECT run, node, first.op, first.broker, first.members, first.broker_id, substring_index(first.value, '/', 1) AS role,
    CASE WHEN instr(first.value, '/') > 0 THEN substring(first.value, instr(first.value, '/') + 1) ELSE '' END AS online,
    first.complete_ms AS begin_ms,
    greatest(first.complete_ms, last_ms) AS end_ms,
    row_number() OVER (PARTITION BY run ORDER BY first.complete_ms, node_first, number) AS place
  FROM stretches WHERE first.outcome = 'ok'
)
"""

ONE_MASTER = Query(
    "one-master",
    f"""
WITH {_SPANS}, counted AS (SELECT run, count(*) AS facts FROM spans GROUP BY run)
SELECT r.run, coalesce(c.facts, 0) AS facts,
  CASE WHEN c.facts IS NULL THEN 'no broker reported its role' ELSE '' END AS lacking
FROM runs r LEFT JOIN counted c ON r.run = c.run
""",
    f"""
WITH {_SPANS}, serving AS (
  SELECT *, role = 'acting' AS acts FROM spans WHERE role = 'acting' OR (role = 'master' AND online = 'online')
), both AS (
  SELECT a.run, a.op AS first_op, b.op, a.node AS first_node, b.node, a.role AS first_role, b.role, a.place AS first_place,
    b.place, b.begin_ms, least(a.end_ms, b.end_ms) AS until_ms, a.acts OR b.acts AS is_counted,
    a.acts AND b.acts AS both_act
  FROM serving a JOIN serving b ON a.run = b.run AND a.broker = b.broker AND a.node <> b.node AND a.place < b.place
    AND a.end_ms > b.begin_ms
), alone AS (
  SELECT b.*, r.at_once_max_ms, sum(greatest(0, until_ms - begin_ms - aggregate(r.windows, 0L,
    (inside, w) -> inside + greatest(0, least(until_ms, w.until_ms) - greatest(begin_ms, w.since_ms))))) OVER (
      PARTITION BY b.run, least(first_node, node), greatest(first_node, node) ORDER BY place, first_place
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS alone_ms
  FROM both b JOIN runs r ON b.run = r.run WHERE is_counted
), answers AS (
  SELECT run, op, key, outcome, broker, invoke_ms, complete_ms FROM sends
  UNION ALL SELECT run, op, key, outcome, broker, invoke_ms, complete_ms FROM delays
)
SELECT run, array(op) AS ops, '' AS key,
  concat(node, ' acts as master at ', begin_ms, ' ms, although it sees broker id ', array_min(members), ' alive') AS what
FROM spans WHERE role = 'acting' AND array_min(members) < broker_id
UNION ALL
SELECT run, array(first_op, op), '',
  concat(first_node, ' and ', node, ' both append from ', begin_ms, ' to ', until_ms, ' ms')
FROM both WHERE NOT is_counted
UNION ALL
SELECT run, array(first_op, op), '', concat(CASE WHEN both_act THEN concat(first_node, ' and ', node, ' both act as master')
    ELSE concat(first_node, ' is ', first_role, ' and ', node, ' is ', role) END,
  ', for ', alone_ms, ' ms that no fault explains')
FROM alone WHERE alone_ms > at_once_max_ms
UNION ALL
SELECT a.run, array(a.op), a.key, concat('acknowledged at ', a.complete_ms, ' ms while ', r.fault_node,
  ' was gone: an acting slave must have stored it')
FROM answers a JOIN runs r ON a.run = r.run AND r.is_silent AND a.broker = r.fault_broker
WHERE a.outcome = 'ok' AND r.bites_ms < a.invoke_ms AND a.complete_ms < r.ended_ms
""",
)

LOCKS = Query(
    "locks-exclusive",
    "SELECT run, locks AS facts, CASE granted WHEN 0 THEN 'no lock was granted' ELSE '' END AS lacking FROM runs",
    """
SELECT a.run, array(a.op, b.op) AS ops, '' AS key,
  concat(a.broker, ' queue ', a.queue, ', group ', a.group_name, ': ', a.client, ' (granted by ', a.node, ') and ',
    b.client, ' (granted by ', b.node, ') both hold the lock from ',
    b.begin_ms, ' to ', least(a.end_ms, b.end_ms), ' ms') AS what
FROM leases a JOIN leases b ON a.run = b.run AND a.group_name = b.group_name AND a.broker = b.broker AND a.queue = b.queue
  AND a.client <> b.client AND a.number < b.number AND a.end_ms > b.begin_ms
JOIN runs r ON a.run = r.run AND r.is_strict
""",
    step="leases: what a member holds depends on all earlier calls",
)

_DUES = f"""
sent AS (
  SELECT run, key, max_by(struct(op, value, due_ms), op) AS last FROM delays GROUP BY run, key
), given AS (
  SELECT d.*, s.last, s.last IS NOT NULL AND s.last.value = d.value AS is_sent
  FROM dues d LEFT JOIN sent s ON d.run = s.run AND d.key = s.key
), copies AS (
  SELECT run, key, min_by(struct(op, broker, queue, stored_ms, escaped_by), op) AS first
  FROM given WHERE is_sent GROUP BY run, key, broker, queue, offset
), released AS (
  SELECT run, key, first.op AS op, first.stored_ms AS stored_ms,
    concat('at ', first.stored_ms, ' ms to ', first.broker, ' queue ', first.queue,
      CASE WHEN first.escaped_by <> '' THEN concat(' by ', first.escaped_by) ELSE '' END) AS who
  FROM copies
), again AS (
  SELECT *, lag(struct(op, stored_ms, who)) OVER (PARTITION BY run, key ORDER BY stored_ms, op) AS before FROM released
), late AS (
  SELECT d.* FROM delays d JOIN runs r ON d.run = r.run
  LEFT ANTI JOIN dues g ON d.run = g.run AND d.key = g.key
  WHERE d.outcome = 'ok' AND d.due_ms + {ON_ITS_WAY_MS} <= r.load_ends_ms
)
"""

DELAYS = Query(
    "delay-kept",
    """
WITH sent AS (SELECT run, count(DISTINCT key) AS messages FROM delays GROUP BY run)
SELECT r.run, coalesce(s.messages, 0) + r.dues AS facts,
  CASE WHEN s.messages IS NULL THEN 'no delayed message was sent' ELSE '' END AS lacking
FROM runs r LEFT JOIN sent s ON r.run = s.run
""",
    f"""
WITH {_DUES}
SELECT run, array(op) AS ops, key, concat('delivered at ', complete_ms, ' ms, but ',
  CASE WHEN last IS NULL THEN 'was never sent'
    ELSE concat('has another body (checksum ', value, ', not ', last.value, ')') END) AS what
FROM given WHERE NOT is_sent
UNION ALL
SELECT g.run, array(g.last.op, g.op), g.key,
  concat('delivered at ', g.complete_ms, ' ms, ', g.last.due_ms - g.complete_ms, ' ms before it was due')
FROM given g JOIN runs r ON g.run = r.run
WHERE g.is_sent AND g.last.due_ms - g.complete_ms > {EARLY_MS} AND (r.jumped_ms IS NULL OR g.complete_ms < r.jumped_ms)
UNION ALL
SELECT l.run, array(l.op), l.key, concat('answered ', CASE l.status WHEN '' THEN 'SEND_OK' ELSE l.status END, ' at ',
  l.complete_ms, ' ms, but never delivered')
FROM late l LEFT JOIN promised p ON l.run = p.run AND l.op = p.op AND p.kind = 'delay'
WHERE coalesce(p.where_kept, 'master') = 'master'
UNION ALL
SELECT a.run, array(a.before.op, a.op), a.key,
  concat('released ', a.before.who, ' and again ', a.who, '; no fault or takeover explains the second release')
FROM again a JOIN runs r ON a.run = r.run
WHERE a.before IS NOT NULL
  AND NOT exists(r.allowed, s -> s.since_ms <= a.before.stored_ms AND a.before.stored_ms <= s.until_ms)
""",
    step="which messages may be released twice depends on which node served when",
)

_REWINDING = ", ".join(f"'{harm}'" for harm in REWINDING)

# `begins`: the offset with which the new server began, from the polls just before and just after
# its begin (`progress.Looks.soon`).
_CHANGES = f"""
changes AS (SELECT run, each.* FROM (SELECT run, explode(changes) AS each FROM runs)),
pairs AS (
  SELECT c.run, c.number, h.group_name, h.queue, any_value(struct(c.*)) AS change,
    max_by(struct(h.op, h.offset), struct(h.complete_ms, h.op))
      FILTER (WHERE h.client = c.before AND h.complete_ms <= c.sure_ms) AS least,
    max_by(struct(h.op, h.offset, h.boot), struct(h.complete_ms, h.op))
      FILTER (WHERE h.client = c.after AND h.complete_ms <= c.begin_ms) AS earlier,
    min_by(struct(h.op, h.offset, h.boot, h.complete_ms, h.each_look), struct(h.complete_ms, h.op))
      FILTER (WHERE h.client = c.after AND h.complete_ms > c.begin_ms) AS later
  FROM changes c JOIN committed h ON c.run = h.run AND h.client IN (c.before, c.after)
  WHERE h.outcome = 'ok' GROUP BY c.run, c.number, h.group_name, h.queue HAVING bool_or(h.client = c.before)
), timed AS (
  SELECT *, coalesce(later.complete_ms > change.begin_ms + CASE WHEN later.each_look THEN {LATE_LOOK_MS} ELSE {LOOK_MS} END,
    false) AS is_late FROM pairs
), known AS (
  SELECT *, CASE WHEN NOT is_late THEN later END AS soon FROM timed WHERE NOT (is_late AND later.each_look)
), sure AS (
  SELECT run, number, group_name, queue, change, least.op AS least_op, coalesce(least.offset, -1L) AS least,
    coalesce(soon.op, earlier.op) AS begin_op,
    CASE WHEN earlier IS NOT NULL AND soon IS NOT NULL AND NOT (earlier.boot <=> soon.boot) THEN soon.offset
      ELSE coalesce(greatest(earlier.offset, soon.offset), -1L) END AS begins
  FROM known
)
"""

PROGRESS = Query(
    "progress-forward",
    f"""
WITH {_CHANGES}, compared AS (SELECT run, count(*) AS facts FROM sure GROUP BY run), served AS (
  SELECT s.run, count(*) AS facts FROM (SELECT run, explode(served) AS node FROM runs WHERE size(changes) = 0) s
  JOIN (SELECT DISTINCT run, client, group_name, queue FROM committed WHERE outcome = 'ok') k
  ON s.run = k.run AND s.node = k.client GROUP BY s.run
)
SELECT r.run, coalesce(c.facts, s.facts, 0) AS facts,
  CASE WHEN coalesce(c.facts, s.facts, 0) = 0 THEN '{LACKING}' ELSE '' END AS lacking
FROM runs r LEFT JOIN compared c ON r.run = c.run LEFT JOIN served s ON r.run = s.run
""",
    f"""
WITH {_CHANGES}, judged AS (SELECT run FROM runs WHERE NOT has_fault OR harm NOT IN ({_REWINDING})), given AS (
  SELECT d.*, row_number() OVER (PARTITION BY d.run, d.group_name, d.broker, d.queue, d.offset ORDER BY d.op) AS time
  FROM deliveries d LEFT SEMI JOIN changes c ON d.run = c.run AND d.broker = c.broker
), again AS (
  SELECT g.run, g.op, any_value(g.key) AS key, any_value(g.group_name) AS group_name, any_value(g.broker) AS broker,
    any_value(g.queue) AS queue, any_value(g.offset) AS offset, any_value(g.complete_ms) AS complete_ms,
    max_by(struct(c.number, c.what, c.before, c.after, c.calm_ms), struct(c.begin_ms, c.number)) AS change
  FROM given g JOIN changes c ON g.run = c.run AND g.broker = c.broker AND c.begin_ms <= g.complete_ms
  WHERE g.time > 1 GROUP BY g.run, g.op
)
SELECT s.run, filter(array(s.least_op, s.begin_op), op -> op IS NOT NULL) AS ops, '' AS key,
  concat(s.change.what, ': ', s.change.after, ' serves from ', s.change.begin_ms, ' ms with offset ', s.begins,
    ' of group ', s.group_name, ', ', s.change.broker, ' queue ', s.queue, '; ', s.change.before, ' held ', s.least, ' at ',
    s.change.sure_ms, ' ms') AS what
FROM sure s LEFT SEMI JOIN judged j ON s.run = j.run
WHERE s.begins < s.least
UNION ALL
SELECT a.run, array(a.op), a.key,
  concat('redelivered to group ', a.group_name, ' at ', a.complete_ms, ' ms, after ', a.change.before,
    ' had handed over to ', a.change.after)
FROM again a LEFT SEMI JOIN judged j ON a.run = j.run
WHERE a.complete_ms <= a.change.calm_ms
UNION ALL
SELECT a.run, filter(array(s.least_op, a.op), op -> op IS NOT NULL), a.key,
  concat('redelivered to group ', a.group_name, ' at ', a.complete_ms, ' ms, although the group had committed past offset ',
    a.offset, ' of ', a.broker, ' queue ', a.queue, ' more than a second before the ', a.change.what)
FROM again a LEFT SEMI JOIN judged j ON a.run = j.run JOIN sure s
ON a.run = s.run AND a.change.number = s.number AND a.group_name = s.group_name AND a.queue = s.queue
WHERE a.offset < s.least AND a.complete_ms > a.change.calm_ms
""",
    step="a state machine over the roles finds which node served a broker group when",
)

QUERIES = (ONE_MASTER, LOCKS, DELAYS, PROGRESS)
