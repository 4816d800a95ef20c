"""Views that several queries share: where messages are, what the mode promised, what was lost.

    runs         a row per run: its plan, fault and nodes (`run_check.context`), and row counts
    there        (run, key): whether the last reading found the message at a master, at a slave
    lost         a row per send that was not refused and that no master has at the end, with the
                 place where the mode promises it (`SurvivalRule`)
    gone         (run, key): lost where the mode allows it
    unanswered   (run, key, broker, queue, offset): read before a power cut, but never acknowledged

Each view is computed once and stored, since several queries read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqkit.drill.promises.table import Harm
from rmqkit.spark.arrow_tasks import map_in_arrow
from rmqkit.spark.audit.run_check import SurvivalRule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONTEXT = (
    "run string, has_fault boolean, harm string, hits_master boolean, masters array<string>, slaves array<string>, "
    "unread string"
)
LOST = "lost"

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

#: the sends that are lost; `placed` adds where they are promised
SENDS = """
SELECT s.run, s.op, s.key, s.outcome, s.status, s.broker, s.invoke_ms, s.complete_ms
FROM sends s JOIN runs r ON s.run = r.run AND r.has_fault
LEFT ANTI JOIN (SELECT run, key FROM there WHERE at_master) t ON s.run = t.run AND s.key = t.key
WHERE s.outcome <> 'fail'
"""


def placed(sends: DataFrame, rules: Mapping[str, SurvivalRule]) -> DataFrame:
    """Return the sends of the query SENDS with `where_kept`, as the rule of their run says."""
    from pyspark.sql.types import StringType, StructField, StructType

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kept = [rules[row["run"]].where(row) for row in batch.to_pylist()]
            yield batch.append_column("where_kept", pa.array(kept, pa.string()))

    return map_in_arrow(sends, place, StructType([*sends.schema.fields, StructField("where_kept", StringType())]))


GONE = "SELECT DISTINCT run, key FROM lost WHERE where_kept <> 'master'"

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
VIEWS = {"runs": RUNS, "there": THERE, LOST: SENDS, "gone": GONE, "unanswered": UNANSWERED}
