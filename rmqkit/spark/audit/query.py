"""What a promise is in the audit: two queries over the tables, and each says something of all runs at once.

    facts      run, facts, lacking: how much was looked at, and what there is too little of to call it valid ("": nothing)
    broken     run, ops, key, what: a row a fact that breaks it, with the rows of the history that show it

A run of which `facts` says nothing has none. Like `rmqkit.drill.promises.contract.judged`, what is broken is broken
whatever is lacking: a query that wants all there first says so itself.
"""

from typing import NamedTuple


class Query(NamedTuple):
    #: as a plan names the promise
    name: str
    facts: str
    broken: str
    #: what of it is a step in Python, "" when all of it is SQL
    step: str = ""
