"""The audit on Spark says of histories what the in-process checkers say: judgements, facts, violations, word by word."""

import json
from collections import Counter

import pytest

from rmqkit.drill import runs as folders
from rmqkit.drill.history import History, write_lines, write_parquet
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.promises.contract import TOLD_MAX
from tests.spark import histories

pytest.importorskip("pyspark")
pytestmark = pytest.mark.xdist_group("spark")


def checked(given):
    """By (run, promise), what the in-process checkers say: judgement, facts, how many are broken, which, why not."""
    made = {}
    for name, history, plan in given:
        for promise in (make() for make in PROMISES.values()):
            if promise.applies(plan):
                finding = promise.check(history, plan)
                told = sorted((each.key, each.what) for each in finding.broken)
                why = finding.why if finding.judgement is Judgement.INCONCLUSIVE else ""
                made[name, promise.name] = (finding.judgement, finding.facts, finding.counts.get("broken", 0), told, why)
    return made


def audited(found):
    return {
        (each.run, each.promise): (
            each.judgement,
            each.facts,
            each.broken,
            sorted((violation.key, violation.what) for violation in each.violations),
            each.why,
        )
        for each in found
    }


def differences(given, found):
    """Of what the audit says otherwise than the checkers; of more violations than are told, how many there are."""
    wanted, seen = checked(given), audited(found)
    assert wanted.keys() == seen.keys()
    return [
        (key, wanted[key], seen[key])
        for key in wanted
        if wanted[key][:3] != seen[key][:3]
        or wanted[key][4] != seen[key][4]
        or (wanted[key][2] <= TOLD_MAX and wanted[key][3] != seen[key][3])
    ]


def test_the_audit_and_the_checkers_agree_on_histories_with_lies(spark):
    from rmqkit.spark import audit

    given = histories.mutated(histories.recorded(), 60, seed=1)
    found = audit.audit(spark, given)
    assert differences(given, found) == []
    broken = Counter(each.promise for each in found if each.judgement is Judgement.BROKEN)
    assert set(broken) == set(PROMISES)
    valid = Counter(each.promise for each in found if each.judgement is Judgement.VALID)
    assert set(valid) == set(PROMISES)
