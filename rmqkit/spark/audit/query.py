"""The form of a promise in the audit: two SQL queries over the tables, each for all runs at once.

    facts      run, facts, lacking: how many facts were checked, and what is missing for a
               judgement of valid ("" if nothing is)
    broken     run, ops, key, what: one row per violation, with the history rows that prove it

A run without a row in `facts` has no facts. As in `rmqkit.drill.promises.contract.judged`, a
violation counts even if something is lacking. A `broken` query that needs complete data checks that
itself.
"""

from typing import NamedTuple


class Query(NamedTuple):
    """A promise as two queries, see the head of this module."""

    #: the promise's name in plans
    name: str
    facts: str
    broken: str
    #: what a step in Python contributes and why, "" if the promise is pure SQL
    step: str = ""
