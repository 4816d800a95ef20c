"""Queries for the promises about timers, transactions, pop and elections.

Their checkers follow each message from step to step, so a step in Python calls them
(`steps.services`) and these queries only read the view `services`. The step lists the first
`TOLD_MAX` violations of a promise. One row for each of the others follows them, so that the number
of violations is right.
"""

from rmqkit.spark.audit.query import Query
from rmqkit.spark.audit.steps import SERVICE_PROMISES

_STEP = "the drill's own checker, over the rows of the run"
#: greater than the number of any row, so that it comes after the listed violations
_LAST_OP = 9_223_372_036_854_775_807


def _query(name: str) -> Query:
    return Query(
        name,
        f"SELECT run, facts, lacking FROM services WHERE promise = '{name}'",
        f"""
SELECT run, each.ops AS ops, each.key AS key, each.what AS what
FROM (SELECT run, explode(told) AS each FROM services WHERE promise = '{name}')
UNION ALL
SELECT run, array({_LAST_OP}L), '', ''
FROM (SELECT run, explode(sequence(size(told) + 1L, broken)) FROM services WHERE promise = '{name}' AND broken > size(told))
""",
        step=_STEP,
    )


QUERIES = tuple(_query(made.name) for made in SERVICE_PROMISES)
