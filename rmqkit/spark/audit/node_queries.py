"""Queries for the promises about nodes: committed offsets, equal logs, bounded waits, recovery.

Committed offsets are compared by windows over each node's polls, logs piece by piece. Each query
gives the same judgement, in the same words, as the checker of that name in `rmqkit.drill.promises`.
"""

from rmqkit.drill.promises.waits import MARGIN_MS
from rmqkit.spark.audit.query import Query

_PLACE = "run, client, disk, group_name, broker, queue"

# What a node held at this time, it must have saved before it ended: `saved_ms` before its last
# poll, not counting intervals in which the node was broken. They are subtracted from the latest to
# the earliest, since each moves the time further back.
_SINCE = """
aggregate(reverse(array_sort(filter(r.broken, b -> b.node = l.client))), l.before.complete_ms - r.saved_ms,
  (since_ms, b) -> CASE WHEN b.until_ms > since_ms AND b.since_ms < l.before.complete_ms
    THEN since_ms - (least(b.until_ms, l.before.complete_ms) - b.since_ms) ELSE since_ms END)
"""

COMMITS = Query(
    "commits-forward",
    """
SELECT run, committed AS facts,
  CASE committed WHEN 0 THEN 'no broker reported an offset of the groups' ELSE '' END AS lacking
FROM runs
""",
    f"""
WITH held AS (
  SELECT *, lag(struct(op, offset, boot, complete_ms)) OVER w AS before, lead(op) OVER w IS NULL AS is_last,
    first_value(struct(complete_ms, op)) OVER w AS first
  FROM committed WHERE outcome = 'ok' WINDOW w AS (PARTITION BY {_PLACE} ORDER BY complete_ms, op)
), back AS (
  SELECT *, concat(client, ': group ', group_name, ', ', broker, ' queue ', queue) AS who
  FROM held WHERE offset < before.offset AND NOT by_member
), restarts AS (
  SELECT l.*, r.saved_ms, {_SINCE} AS since_ms FROM back l JOIN runs r ON l.run = r.run
  WHERE NOT (l.boot <=> l.before.boot)
), written AS (
  -- the offset seen by the last poll that is old enough, in the process run that ended there
  SELECT l.run, l.op, any_value(l.who) AS who, any_value(l.offset) AS offset, any_value(l.saved_ms) AS saved_ms,
    max_by(h.offset, struct(h.complete_ms, h.op)) AS least
  FROM restarts l JOIN held h ON l.run = h.run AND l.client = h.client AND l.disk = h.disk AND l.group_name = h.group_name
    AND l.broker = h.broker AND l.queue = h.queue AND h.boot <=> l.before.boot AND h.complete_ms <= l.since_ms
    AND struct(h.complete_ms, h.op) <= struct(l.before.complete_ms, l.before.op)
  GROUP BY l.run, l.op
), quiet AS (
  SELECT h.run, h.group_name, h.broker, h.queue, count(DISTINCT h.offset) AS different,
    array_sort(collect_list(struct(h.first, h.client, h.offset, h.op))) AS looks
  FROM held h JOIN runs r ON h.run = r.run
  WHERE h.is_last AND h.final AND h.complete_ms >= r.load_ends_ms GROUP BY h.run, h.group_name, h.broker, h.queue
)
SELECT run, array(before.op, op) AS ops, '' AS key,
  concat(who, ': the offset decreased from ', before.offset, ' to ', offset, ' at ', complete_ms, ' ms') AS what
FROM back WHERE boot <=> before.boot
UNION ALL
SELECT run, array(op), '', concat(who, ': restarted with offset ', offset, ', although it held ', least, ' more than ',
  saved_ms, ' ms before it ended') FROM written WHERE offset < least
UNION ALL
SELECT run, transform(looks, l -> l.op), '', concat('group ', group_name, ', ', broker, ' queue ', queue,
  ': the replicas hold different offsets: ', array_join(transform(looks, l -> concat(l.client, ' ', l.offset)), ', '))
FROM quiet WHERE different > 1
""",
)

_PIECES = """
readable AS (
  SELECT r.run, r.ahead FROM runs r LEFT ANTI JOIN (SELECT run FROM logs WHERE outcome <> 'ok') l ON r.run = l.run
), pieces AS (
  SELECT l.run, l.broker, l.offset, l.size, max_by(struct(l.op, l.client, l.value), l.op) AS last
  FROM logs l LEFT SEMI JOIN readable r ON l.run = r.run
  WHERE l.role = 'master' GROUP BY l.run, l.broker, l.offset, l.size
), copied AS (
  SELECT l.* FROM logs l JOIN readable r ON l.run = r.run
  WHERE l.role <> 'master' AND NOT coalesce(array_contains(r.ahead, l.client), false)
), compared AS (
  SELECT c.*, p.last FROM copied c JOIN pieces p
  ON c.run = p.run AND c.broker = p.broker AND c.offset = p.offset AND c.size = p.size
)
"""

LOGS = Query(
    "logs-equal",
    f"""
WITH {_PIECES}, counted AS (SELECT run, count(*) AS pieces FROM compared GROUP BY run), unreadable AS (
  SELECT run, min_by(concat('the log of ', client, ' could not be read: ', coalesce(error, '')), op) AS why
  FROM logs WHERE outcome <> 'ok' GROUP BY run
), told AS (
  SELECT r.run, u.why, CASE WHEN u.why IS NULL THEN coalesce(c.pieces, 0) + coalesce(size(r.ahead), 0) ELSE 0 END AS facts
  FROM runs r LEFT JOIN unreadable u ON r.run = u.run LEFT JOIN counted c ON r.run = c.run
)
SELECT run, facts, CASE WHEN why IS NOT NULL THEN why WHEN facts = 0 THEN 'no slave\\'s log could be compared' ELSE '' END
  AS lacking FROM told
""",
    f"""
WITH {_PIECES}, begun AS (
  SELECT run, client, broker, min(offset) AS first FROM copied GROUP BY run, client, broker
), lacked AS (
  SELECT DISTINCT b.run, b.client, b.broker, p.offset, p.last.op AS op
  FROM begun b JOIN pieces p ON b.run = p.run AND b.broker = p.broker AND p.offset >= b.first
  LEFT ANTI JOIN copied c ON b.run = c.run AND b.client = c.client AND b.broker = c.broker AND p.offset = c.offset
)
SELECT run, array(last.op, op) AS ops, '' AS key,
  concat(client, ' differs from ', last.client, ' in bytes ', offset, ' to ', offset + size) AS what
FROM compared WHERE value <> last.value
UNION ALL
SELECT run, array(min(op)), '', concat(client, ' lacks ', count(DISTINCT offset), ' pieces from byte ', min(offset), ' on')
FROM lacked GROUP BY run, client, broker
""",
)

WAITS = Query(
    "waits-bounded",
    "SELECT run, sends AS facts, '' AS lacking FROM runs",
    f"""
WITH timed AS (
  SELECT s.run, s.op, s.key, s.complete_ms - s.invoke_ms AS took_ms,
    CASE WHEN s.status <> '' THEN s.status ELSE coalesce(s.error, s.outcome) END AS ended,
    least(
      coalesce(s.timeout_ms, r.send_timeout_ms),
      CASE s.status WHEN 'FLUSH_SLAVE_TIMEOUT' THEN r.slave_timeout_ms
        WHEN 'FLUSH_DISK_TIMEOUT' THEN r.flush_timeout_ms END,
      -- a master that no fault hits answers within its own limits, however long the client waits
      CASE WHEN r.has_fault AND NOT r.hits_master AND s.outcome = 'ok'
        THEN greatest(r.slave_timeout_ms, r.flush_timeout_ms) END
    ) + {MARGIN_MS} AS limit_ms
  FROM sends s JOIN runs r ON s.run = r.run
)
SELECT run, array(op) AS ops, key,
  concat('ended after ', took_ms, ' ms (', ended, '); the limit is ', limit_ms, ' ms') AS what
FROM timed WHERE took_ms > limit_ms
""",
)

_WRITERS = """
writers AS (
  SELECT s.run, s.client, max(s.op) AS last_op, bool_or(s.invoke_ms >= r.ended_ms) AS has_tried,
    min_by(s.complete_ms, s.op) FILTER (WHERE s.outcome = 'ok' AND s.complete_ms >= r.ended_ms) AS again_ms
  FROM sends s JOIN runs r ON s.run = r.run WHERE r.ended_ms IS NOT NULL GROUP BY s.run, s.client
)
"""
_RECOVERED = f"""
WITH {_WRITERS}, judged AS (
  SELECT w.*, r.recover_max_ms FROM writers w JOIN runs r ON w.run = r.run
  WHERE size(r.refusing) = 0
    AND CASE WHEN w.again_ms IS NULL THEN w.has_tried ELSE w.again_ms > r.ended_ms + r.recover_max_ms END
)
SELECT run, array(last_op) AS ops, '' AS key,
  concat(client, ' was not acknowledged within ', recover_max_ms, ' ms after the end of the fault') AS what FROM judged
UNION ALL
SELECT e.run, array(e.op), '', concat(e.client, ' does not serve queue ', e.queue, ': ', coalesce(e.error, ''))
FROM ends e JOIN runs r ON e.run = r.run WHERE e.outcome <> 'ok' AND r.ended_ms IS NOT NULL
UNION ALL
SELECT l.run, array(l.op), '',
  rtrim(concat(l.client, ' does not follow its master: ', l.state, ' ', coalesce(l.why, '')))
FROM looks l JOIN runs r ON l.run = r.run
WHERE r.ended_ms IS NOT NULL AND l.outcome = 'ok' AND l.final AND l.role = 'slave' AND l.state NOT IN ('', 'following')
  AND NOT array_contains(r.ahead, l.client)
"""

RECOVERS = Query(
    "recovers",
    f"""
WITH {_WRITERS}, again AS (SELECT run, count(again_ms) AS writers FROM writers GROUP BY run)
SELECT r.run, CASE WHEN r.ended_ms IS NULL THEN 0 ELSE coalesce(a.writers, 0) + size(r.refusing) END AS facts,
  CASE WHEN r.ended_ms IS NULL THEN 'the fault did not end'
    WHEN coalesce(a.writers, 0) = 0 AND size(r.refusing) = 0 THEN 'no message was sent after the fault'
    ELSE '' END AS lacking
FROM runs r LEFT JOIN again a ON r.run = a.run
""",
    _RECOVERED,
)

QUERIES = (COMMITS, LOGS, WAITS, RECOVERS)
