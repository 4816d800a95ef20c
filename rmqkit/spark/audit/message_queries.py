"""Queries for the promises whose size is that of messages, for runs that no process could hold.

Each promise is two queries over the tables and views (`views`), for all large runs at once: one for
its facts, and one for what breaks it. Both use anti-joins of what was sent, read and delivered. A
query gives the same judgement, in the same words, as the checker of that name in
`rmqkit.drill.promises`, whose module defines the promise and its exceptions.
"""

from typing import NamedTuple


class Query(NamedTuple):
    """A promise in SQL.

    A run without a row in `facts` has no facts. As in `rmqkit.drill.promises.contract.judged`, a
    violation counts even if something is lacking. A `broken` query that needs complete data checks
    that itself.
    """

    #: the promise's name in plans
    name: str
    #: run, facts, lacking: how many facts were checked, and what is missing for a judgement of
    #: valid ("" if nothing is)
    facts: str
    #: run, ops, key, what: one row per violation, with the history rows that prove it
    broken: str


SURVIVAL = Query(
    "acknowledged-survive",
    """
SELECT run, CASE WHEN has_fault THEN acknowledged ELSE 0 END AS facts,
  CASE WHEN has_fault THEN unread ELSE 'the history has no fault' END AS lacking
FROM runs
""",
    """
SELECT l.run, array(l.op) AS ops, l.key,
  concat('answered ', CASE l.status WHEN '' THEN 'SEND_OK' ELSE l.status END, ' at ', l.complete_ms, ' ms, but ',
    CASE WHEN t.at_slave THEN 'is stored on a slave only, although the mode promises it on the master'
    ELSE 'is stored on no broker' END) AS what
FROM lost l JOIN runs r ON l.run = r.run LEFT JOIN there t ON l.run = t.run AND l.key = t.key
WHERE l.outcome = 'ok' AND r.unread = ''
  AND CASE WHEN t.at_slave THEN l.where_kept = 'master' ELSE l.where_kept <> 'nowhere' END
""",
)

UNSENT = Query(
    "nothing-unsent",
    "SELECT run, deliveries + reads AS facts, '' AS lacking FROM runs",
    """
WITH sent AS (SELECT run, key, max_by(value, op) AS value FROM sends GROUP BY run, key), seen AS (
  SELECT run, op, key, value, complete_ms, broker, queue, offset, 'delivered' AS how FROM deliveries
  UNION ALL SELECT run, op, key, value, complete_ms, broker, queue, offset, concat('read from ', client) FROM reads
)
SELECT s.run, array(s.op) AS ops, s.key,
  concat(s.how, ' at ', s.complete_ms, ' ms (', s.broker, ' queue ', s.queue, ' offset ', s.offset, ')',
    CASE WHEN m.key IS NULL THEN ', but was never sent'
    ELSE concat(' with another body (checksum ', s.value, ', not ', m.value, ')') END) AS what
FROM seen s LEFT JOIN sent m ON s.run = m.run AND s.key = m.key
WHERE m.key IS NULL OR m.value <> s.value
""",
)

_WANTED = """
wanted AS (
  SELECT s.run, s.key, min(s.op) AS op FROM sends s LEFT SEMI JOIN (SELECT run, key FROM there WHERE at_master) t
  ON s.run = t.run AND s.key = t.key
  WHERE s.outcome = 'ok' GROUP BY s.run, s.key
), teams AS (SELECT DISTINCT run, group_name FROM deliveries)
"""

DELIVERED = Query(
    "everything-delivered",
    f"""
WITH {_WANTED}, counted AS (SELECT run, count(*) AS messages FROM wanted GROUP BY run),
  teams_of AS (SELECT run, count(*) AS number FROM teams GROUP BY run)
SELECT r.run, coalesce(c.messages, 0) * coalesce(t.number, 0) AS facts,
  CASE WHEN r.unread <> '' THEN r.unread WHEN t.number IS NULL THEN 'no consumer received a message' ELSE '' END AS lacking
FROM runs r LEFT JOIN counted c ON r.run = c.run LEFT JOIN teams_of t ON r.run = t.run
""",
    f"""
WITH {_WANTED}, missing AS (
  SELECT w.run, t.group_name, w.key, w.op
  FROM wanted w JOIN teams t ON w.run = t.run JOIN runs r ON w.run = r.run AND r.unread = ''
  LEFT ANTI JOIN deliveries d ON w.run = d.run AND t.group_name = d.group_name AND w.key = d.key
), passed AS (
  -- a group that received an offset before a power cut does not read that offset again
  SELECT DISTINCT d.run, d.group_name, d.broker, d.queue, d.offset FROM deliveries d LEFT SEMI JOIN unanswered u
  ON d.run = u.run AND d.key = u.key AND d.broker = u.broker AND d.queue = u.queue AND d.offset = u.offset
), places AS (
  SELECT DISTINCT s.run, s.key, s.broker, s.queue, s.offset FROM reads s JOIN runs r ON s.run = r.run
  LEFT SEMI JOIN passed p ON s.run = p.run
  WHERE s.outcome = 'ok' AND array_contains(r.masters, s.client)
), excused AS (
  SELECT m.run, m.group_name, m.key FROM missing m JOIN places s ON m.run = s.run AND m.key = s.key
  LEFT JOIN passed p
  ON m.run = p.run AND m.group_name = p.group_name AND s.broker = p.broker AND s.queue = p.queue AND s.offset = p.offset
  GROUP BY m.run, m.group_name, m.key HAVING bool_and(p.run IS NOT NULL)
)
SELECT m.run, array(m.op) AS ops, m.key, concat('was not delivered to group ', m.group_name) AS what
FROM missing m LEFT ANTI JOIN excused e ON m.run = e.run AND m.group_name = e.group_name AND m.key = e.key
""",
)

_CLAIMS = """
all_claims AS (
  SELECT run, op, key, broker, queue, offset, client, complete_ms, 1 AS told FROM sends WHERE outcome = 'ok' AND offset >= 0
  UNION ALL
  SELECT run, op, key, broker, queue, offset, client, complete_ms, 2 FROM deliveries WHERE outcome = 'ok' AND offset >= 0
  UNION ALL
  SELECT run, op, key, broker, queue, offset, client, complete_ms, 3 FROM reads WHERE outcome = 'ok' AND offset >= 0
), claims AS (
  SELECT c.* FROM all_claims c LEFT ANTI JOIN gone g ON c.run = g.run AND c.key = g.key LEFT ANTI JOIN unanswered u
  ON c.run = u.run AND c.key = u.key AND c.broker = u.broker AND c.queue = u.queue AND c.offset = u.offset
)
"""
_HOW = """
CASE {0}.told WHEN 1 THEN concat('answered at ', {0}.complete_ms, ' ms')
  WHEN 2 THEN concat('delivered at ', {0}.complete_ms, ' ms') ELSE concat('read from ', {0}.client, ' at the end') END
"""

STABLE = Query(
    "offsets-stable",
    f"""
WITH {_CLAIMS}, counted AS (SELECT run, count(*) AS facts FROM claims GROUP BY run)
SELECT r.run, coalesce(c.facts, 0) AS facts, CASE WHEN r.ends > 0 THEN '' ELSE 'no queue was read to its end' END AS lacking
FROM runs r LEFT JOIN counted c ON r.run = c.run
""",
    f"""
WITH {_CLAIMS}, doubtful AS (
  SELECT run, broker, queue, offset FROM claims GROUP BY run, broker, queue, offset HAVING min(key) <> max(key)
), compared AS (
  SELECT c.*, first_value(struct(c.op, c.key, c.told, c.complete_ms, c.client)) OVER (
    PARTITION BY c.run, c.broker, c.queue, c.offset ORDER BY c.told, c.op) AS first
  FROM claims c LEFT SEMI JOIN doubtful d
  ON c.run = d.run AND c.broker = d.broker AND c.queue = d.queue AND c.offset = d.offset
), whole AS (
  SELECT run, op, client, broker, queue, offset_min, offset FROM ends WHERE outcome = 'ok' AND offset > offset_min
), found AS (
  SELECT w.run, w.op, r.offset FROM whole w JOIN reads r ON w.run = r.run AND w.client = r.client AND w.broker = r.broker
    AND w.queue = r.queue AND r.offset >= w.offset_min AND r.offset < w.offset AND r.outcome = 'ok'
  UNION SELECT run, op, offset_min - 1 FROM whole
  UNION SELECT run, op, offset FROM whole
), steps AS (
  SELECT run, op, offset, lag(offset) OVER (PARTITION BY run, op ORDER BY offset) + 1 AS next FROM found
), holes AS (
  SELECT run, op, array_join(transform(array_sort(collect_list(struct(next, offset - 1 AS last))),
    h -> CASE WHEN h.next = h.last THEN string(h.next) ELSE concat(h.next, '-', h.last) END), ', ') AS ranges
  FROM steps WHERE offset > next GROUP BY run, op
)
SELECT c.run, array(c.first.op, c.op) AS ops, c.key, concat(c.broker, ' queue ', c.queue, ' offset ', c.offset,
  ' is this message (', {_HOW.format("c")}, ') and also ', c.first.key, ' (', {_HOW.format("c.first")}, ')') AS what
FROM compared c WHERE c.key <> c.first.key
UNION ALL
SELECT w.run, array(w.op), '',
  concat(w.client, ': queue ', w.queue, ' has no message at ', h.ranges, ' (its end is ', w.offset, ')')
FROM holes h JOIN whole w ON h.run = w.run AND h.op = w.op
""",
)

#: promise name -> query
QUERIES = {query.name: query for query in (SURVIVAL, UNSENT, DELIVERED, STABLE)}
