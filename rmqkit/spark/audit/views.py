"""Views that several queries share: where messages are, what the mode promised, what was lost.

    runs         a row per run: its plan, fault and nodes (`run_check.context`), and row counts
    there        (run, key): whether the last reading found the message at a master, at a slave
    insync       (run, broker): the first and last poll of the master, and when it was alone in sync
    promised     a row per send that was not refused: where it must survive
    gone         (run, key): sent messages that no master has at the end, where the mode allows it
    unanswered   (run, key, broker, queue, offset): read before a power cut, but never acknowledged

Each view is computed once and stored, since several queries read it.
"""

from rmqkit.drill.promises.table import AS_ALONE, AS_UNSYNCED, Harm

CONTEXT = (
    "run string, replicas int, is_quorum boolean, has_fault boolean, harm string, fault_broker string, "
    "hits_master boolean, fault_ms bigint, where_plain string, where_alone string, where_unsynced string, "
    "where_both string, masters array<string>, slaves array<string>, unread string"
)

RUNS = """
WITH totals AS (
  SELECT run, count_if(kind = 'send' AND outcome = 'ok') AS acknowledged, count_if(kind = 'deliver') AS deliveries,
    count_if(kind = 'read') AS reads, count_if(kind = 'end' AND outcome = 'ok') AS ends
  FROM rows GROUP BY run
)
SELECT c.*, coalesce(t.acknowledged, 0) AS acknowledged, coalesce(t.deliveries, 0) AS deliveries,
  coalesce(t.reads, 0) AS reads, coalesce(t.ends, 0) AS ends
FROM contexts c LEFT JOIN totals t ON c.run = t.run
"""

THERE = """
WITH asked_nodes AS (
  SELECT run, explode(masters) AS client, true AS is_master FROM runs
  UNION ALL SELECT run, explode(slaves), false FROM runs
)
SELECT r.run, r.key, bool_or(n.is_master) AS at_master, bool_or(NOT n.is_master) AS at_slave
FROM reads r JOIN asked_nodes n ON r.run = n.run AND r.client = n.client
WHERE r.outcome = 'ok' GROUP BY r.run, r.key
"""

# `alone`: intervals of consecutive polls that saw fewer than two in-sync replicas, the master
# included. The poll before such an interval and the one after it bound the sends that it concerns.
INSYNC = """
WITH ordered AS (
  SELECT run, broker, op, complete_ms AS at_ms, in_sync < 2 AS is_alone,
    lag(in_sync < 2, 1, false) OVER w AS was_alone, lag(complete_ms) OVER w AS before_ms,
    lead(complete_ms) OVER w AS next_ms
  FROM looks WHERE outcome = 'ok' AND role = 'master' AND in_sync IS NOT NULL
  WINDOW w AS (PARTITION BY run, broker ORDER BY complete_ms, op)
), numbered AS (
  SELECT *, count_if(is_alone AND NOT was_alone) OVER (PARTITION BY run, broker ORDER BY at_ms, op) AS number FROM ordered
), stretches AS (
  SELECT run, broker, is_alone, number, min(at_ms) AS first_ms, max(at_ms) AS last_ms,
    min_by(before_ms, struct(at_ms, op)) AS before_ms, max_by(next_ms, struct(at_ms, op)) AS next_ms
  FROM numbered GROUP BY run, broker, is_alone, number
)
SELECT run, broker, min(first_ms) AS first_ms, max(last_ms) AS last_ms,
  collect_list(CASE WHEN is_alone THEN struct(before_ms, first_ms, next_ms) END) AS alone
FROM stretches GROUP BY run, broker
"""

# The same rule as `facts.Copies.during`: if the poll on one side of a send is missing, the master
# counts as alone, except after the fault for sends that were answered before it.
_SHRUNK = """
  c.run IS NULL OR s.invoke_ms < c.first_ms OR (s.complete_ms > c.last_ms AND s.complete_ms >= r.fault_ms)
  OR exists(c.alone, a -> (a.next_ms IS NULL OR a.next_ms > s.invoke_ms)
    AND (a.before_ms IS NULL OR a.before_ms < s.complete_ms OR a.first_ms <= s.invoke_ms)
    AND NOT (a.first_ms > s.invoke_ms AND a.first_ms >= s.complete_ms AND a.first_ms >= r.fault_ms
      AND s.complete_ms < r.fault_ms))
"""


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


PROMISED = f"""
WITH told AS (
  SELECT s.*, r.where_plain, r.where_alone, r.where_unsynced, r.where_both,
    r.hits_master AND (r.fault_broker = '' OR r.fault_broker = s.broker) AS is_hit,
    s.status IN ({_words(AS_UNSYNCED)}) AS is_unsynced,
    s.status IN ({_words(AS_ALONE)}) OR r.replicas < 2 OR (r.is_quorum AND ({_SHRUNK})) AS is_alone
  FROM sends s JOIN runs r ON s.run = r.run AND r.has_fault LEFT JOIN insync c ON s.run = c.run AND s.broker = c.broker
  WHERE s.outcome <> 'fail'
)
SELECT run, op, key, outcome, status, complete_ms,
  CASE WHEN NOT is_hit THEN 'master' WHEN is_alone AND is_unsynced THEN where_both WHEN is_alone THEN where_alone
    WHEN is_unsynced THEN where_unsynced ELSE where_plain END AS where_kept
FROM told
"""

GONE = """
SELECT DISTINCT p.run, p.key
FROM promised p LEFT ANTI JOIN (SELECT run, key FROM there WHERE at_master) t ON p.run = t.run AND p.key = t.key
WHERE p.where_kept <> 'master'
"""

UNANSWERED = f"""
WITH cut AS (SELECT run, masters FROM runs WHERE has_fault AND hits_master AND harm = '{Harm.POWER_CUT}'), seen AS (
  SELECT s.run, key, broker, queue, offset FROM deliveries s JOIN cut c ON s.run = c.run
  UNION SELECT s.run, key, broker, queue, offset FROM reads s JOIN cut c ON s.run = c.run
), certain AS (
  SELECT s.run, key, broker, queue, offset FROM sends s JOIN cut c ON s.run = c.run WHERE outcome = 'ok'
  UNION ALL
  SELECT s.run, key, broker, queue, offset FROM reads s JOIN cut c ON s.run = c.run
  WHERE outcome = 'ok' AND array_contains(c.masters, s.client)
)
SELECT s.* FROM seen s LEFT ANTI JOIN certain c
ON s.run = c.run AND s.key = c.key AND s.broker = c.broker AND s.queue = c.queue AND s.offset = c.offset
"""

#: view name -> SQL, in an order in which each view comes after those that it reads
VIEWS = {"runs": RUNS, "there": THERE, "insync": INSYNC, "promised": PROMISED, "gone": GONE, "unanswered": UNANSWERED}
