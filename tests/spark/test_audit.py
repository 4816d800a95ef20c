"""The audit on Spark agrees with the in-process checkers, word by word.

Compared are judgements, facts and violations.
"""

import json
from collections import Counter

import pytest

from rmqkit.drill import runs as folders
from rmqkit.drill.history import History, write_lines, write_parquet
from rmqkit.drill.plan import Plan, PlanError
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.promises.contract import TOLD_MAX
from rmqkit.drill.verdict import verdict_of
from tests.spark import histories

pytest.importorskip("pyspark")
pytestmark = pytest.mark.xdist_group("spark")


def checked(given):
    """Return the findings of the in-process checkers by (run, promise).

    A finding is the judgement, the facts, the number of violations, the violations, and the reason
    if inconclusive.
    """
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
    """Return the findings in which the audit differs from the checkers.

    If there are more than TOLD_MAX violations, only their number is compared.
    """
    wanted, seen = checked(given), audited(found)
    assert wanted.keys() == seen.keys()
    return [
        (key, wanted[key], seen[key])
        for key in wanted
        if wanted[key][:3] != seen[key][:3]
        or wanted[key][4] != seen[key][4]
        or (wanted[key][2] <= TOLD_MAX and wanted[key][3] != seen[key][3])
    ]


@pytest.mark.long
def test_the_audit_and_the_checkers_agree_on_histories_with_lies(spark):
    from rmqkit.spark import audit

    recorded = histories.recorded()
    given = [*histories.mutated(recorded, 60, seed=1), histories.redelivered(recorded), *histories.elections()]
    found = audit.audit(spark, given)
    assert differences(given, found) == []
    told = [violation.what for each in found for violation in each.violations]
    assert [what for what in told if "had handed over to" in what], "a redelivery at an undisturbed return"
    broken = Counter(each.promise for each in found if each.judgement is Judgement.BROKEN)
    assert set(broken) == set(PROMISES)
    valid = Counter(each.promise for each in found if each.judgement is Judgement.VALID)
    assert set(valid) == set(PROMISES)


def folder_of(where, name, history, plan):
    """Write the folder of a run as a drill leaves it, without a report."""
    run = where / name
    run.mkdir()
    (run / folders.PLAN).write_text(plan.dumps())
    write_lines(history, run / folders.LINES)
    return run


@pytest.mark.long
def test_folders_of_runs_are_audited_whatever_their_files_are(spark, tmp_path):
    """The runs include JSON lines, Parquet, odd names, an unproven run and a run without rows.

    The audit also writes its tables for other queries.
    """
    from rmqkit.spark import audit

    recorded = {name: (history, plan) for name, history, plan in histories.recorded()}
    names = {"replicas-1": "lines 100%+1", "replicas-1-phantom": "parquet", "replicas-1-lost-queue-tail": "lines"}
    given = [(names[name], *recorded[name]) for name in names]
    runs = [folder_of(tmp_path, *each) for each in given]
    (runs[1] / folders.LINES).unlink()
    assert write_parquet(given[1][1], runs[1] / folders.PARQUET)
    empty = ("empty", History(), Plan())
    runs.append(folder_of(tmp_path, *empty))
    unproven = folder_of(tmp_path, "unproven", *recorded["replicas-1"])
    verdict = verdict_of(given[0][1], (), node="", proof="", why="the fault did not show")
    (unproven / folders.VERDICT).write_text(json.dumps(verdict.as_json()))

    found = audit.audit(spark, [*runs, unproven], to=tmp_path / "tables")
    judged, last = found[:-1], found[-1]
    assert differences([*given, empty], judged) == []
    assert (last.run, last.promise, last.judgement, last.why) == ("unproven", "", Judgement.INCONCLUSIVE, verdict.why)
    wanted = {"lines 100%+1": "valid", "parquet": "broken", "lines": "broken", "empty": "inconclusive"}
    assert audit.judgements(found) == {**wanted, "unproven": "inconclusive"}
    assert audit.exit_code(found) == 1
    assert audit.exit_code([each for each in found if not each.broken]) == 4

    sends = spark.read.parquet(str(tmp_path / "tables" / "sends"))
    rows = {row.run: row.number for row in sends.groupBy("run").agg({"*": "count"}).toDF("run", "number").collect()}
    assert rows == {name: len(history.sends) for name, history, _plan in given}
    broken = spark.read.parquet(str(tmp_path / "tables" / "findings")).where("judgement = 'broken'").collect()
    assert {(row.run, row.promise) for row in broken} == {(each.run, each.promise) for each in found if each.broken}


@pytest.mark.long
def test_a_violation_names_the_rows_that_show_it(spark):
    from rmqkit.spark import audit

    (given,) = (each for each in histories.recorded() if each[0] == "replicas-2-reorder")
    name, history, plan = given
    (found,) = audit.audit(spark, [(name, history, plan.changed(promises=("queue-order",)))])
    rows = {row.op: row for row in history.rows}
    assert found.violations
    for violation in found.violations:
        assert violation.key in {rows[op].key for op in violation.ops}


@pytest.mark.long
def test_what_is_no_run_says_so_in_a_line(spark, tmp_path):
    from rmqkit.spark import audit

    name, history, plan = histories.recorded()[0]
    with pytest.raises(audit.AuditError, match="two runs are called"):
        audit.audit(spark, [(name, history, plan), (name, history, plan)])
    run = folder_of(tmp_path, "broken", history, plan)
    with open(run / folders.LINES, "a") as lines:
        lines.write("no row\n")
    with pytest.raises(audit.AuditError, match=r"broken/history\.jsonl is not a history"):
        audit.audit(spark, [run])
    (run / folders.LINES).unlink()
    with pytest.raises(audit.AuditError, match=r"has no history\.jsonl"):
        audit.audit(spark, [run])
    with pytest.raises(PlanError, match=r"plan\.json cannot be read"):
        audit.audit(spark, [tmp_path / "nowhere"])


@pytest.mark.long
def test_a_promise_of_a_plug_in_has_no_query(spark):
    from rmqkit.spark import audit

    name, history, plan = histories.recorded()[0]
    asked = plan.changed(promises=("waits-bounded", "all-is-well"))
    kept, other = audit.audit(spark, [(name, history, asked)])
    assert (kept.promise, kept.judgement) == ("waits-bounded", Judgement.VALID)
    assert (other.promise, other.judgement) == ("all-is-well", Judgement.INCONCLUSIVE)
    assert "no query" in other.why
    told = audit.lines([kept, other])
    assert [line.promise for line in told] == ["", "all-is-well"]
    assert audit.as_json([kept, other])["exit_code"] == 4
