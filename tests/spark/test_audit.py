"""The audit on Spark agrees with the in-process checkers, word by word.

Compared are judgements, facts and violations.
"""

import html
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmqkit.drill import runs as folders
from rmqkit.drill.arrow.rows import write_parquet
from rmqkit.drill.history import History, write_lines
from rmqkit.drill.plan import Plan, PlanError
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.promises.contract import TOLD_MAX, chosen
from rmqkit.drill.promises.waits import WaitsBounded
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
        for promise in chosen((make() for make in PROMISES.values()), plan):
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
    # the same in parts, as if no run fitted into a process
    some = given[-30:]
    assert differences(some, audit.audit(spark, some, process_rows=0)) == []
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
    write_parquet(given[1][1], runs[1] / folders.PARQUET)
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

    name, history, plan = next(each for each in histories.recorded() if each[0] == "replicas-2-reorder")
    rows = {row.op: row for row in history.rows}
    for process_rows in (audit.PROCESS_ROWS, 0):
        found = audit.audit(spark, [(name, history, plan)], process_rows=process_rows)
        violations = [violation for each in found for violation in each.violations if violation.key]
        assert violations
        for violation in violations:
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
    for process_rows in (audit.PROCESS_ROWS, 0):
        with pytest.raises(audit.AuditError, match=r"broken/history\.jsonl:\d+ is not a row of a history"):
            audit.audit(spark, [run], process_rows=process_rows)
    (run / folders.PARQUET).write_bytes(b"no Parquet")
    with pytest.raises(audit.AuditError, match=r"broken/history\.parquet is not a history"):
        audit.audit(spark, [run])
    (run / folders.PARQUET).unlink()
    (run / folders.LINES).unlink()
    with pytest.raises(audit.AuditError, match=r"has no history\.jsonl"):
        audit.audit(spark, [run])
    with pytest.raises(PlanError, match=r"plan\.json cannot be read"):
        audit.audit(spark, [tmp_path / "nowhere"])


PLUGIN = """
from rmqkit.drill.promises.contract import Broken, judged
from rmqkit.hookspecs import hookimpl


class EventsTold:
    name = "events-told"
    text = "a drill has a timeline"

    def applies(self, plan):
        return plan.writers > 1

    def check(self, history, plan):
        assert history.rows
        return judged(len(history.events), [Broken("", f"there are {len(history.events)} events")])


@hookimpl
def rmqkit_promises():
    return {"events-told": EventsTold}
"""


def test_promises_of_plug_ins_are_checked_where_workers_have_them(tmp_path, monkeypatch):
    from rmqkit.spark import audit
    from rmqkit.spark.audit import run_check

    name, history, plan = histories.recorded()[0]
    [run] = audit.found([(name, history, plan.changed(promises=("waits-bounded", "events-told")))])
    kept, other = run_check.check(run, audit.PROCESS_ROWS).found.values()
    assert (kept.promise, kept.judgement) == ("waits-bounded", Judgement.VALID)
    assert (other.promise, other.judgement) == ("events-told", Judgement.INCONCLUSIVE)
    assert "no plug-in" in other.why
    assert [line[1] for line in audit.lines([kept, other])] == ["", "events-told"]
    assert audit.as_json([kept, other])["exit_code"] == 4

    metadata = tmp_path / "told-1.dist-info"
    metadata.mkdir()
    (tmp_path / "told_promise.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: told\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[rmqkit]\ntold = told_promise\n")
    monkeypatch.syspath_prepend(tmp_path)
    run_check.installed.cache_clear()
    try:
        for process_rows in (audit.PROCESS_ROWS, 0):
            found = run_check.check(run, process_rows).found
            events = f"there are {len(history.events)} events"
            assert [violation.what for violation in found["events-told"].violations] == [events]
    finally:
        run_check.installed.cache_clear()


def test_a_checker_that_fails_or_needs_too_many_rows_is_inconclusive(monkeypatch):
    from rmqkit.drill.arrow import stored_history
    from rmqkit.drill.promises.contract import chosen
    from rmqkit.spark import audit
    from rmqkit.spark.audit import run_check

    name, history, plan = histories.recorded()[0]
    sends = len(history.sends)
    monkeypatch.setattr(stored_history, "HELD_ROWS", sends)
    [run] = audit.found([(name, history, plan)])
    checked_run = run_check.check(run, 0)
    found = checked_run.found
    assert set(found) == {each.name for each in chosen([make() for make in run_check.installed().values()], plan)}
    assert found["waits-bounded"].judgement is Judgement.INCONCLUSIVE
    assert f"one process holds {sends:,} rows" in found["waits-bounded"].why
    assert all("it needs 117 rows at once" in found[name].why for name in run_check.IN_PARTS), "the polls of nodes"
    assert checked_run.context is None
    monkeypatch.setattr(stored_history, "HELD_ROWS", 10 * sends)
    checked_run = run_check.check(run, 0)
    assert checked_run.context
    assert all(checked_run.found[name].why == run_check.UNCHECKED for name in run_check.IN_PARTS)

    def fails(self, history, plan):
        raise ZeroDivisionError("no send")

    monkeypatch.setattr(WaitsBounded, "check", fails)
    found = run_check.check(run, audit.PROCESS_ROWS).found
    assert found["waits-bounded"].why == "its checker failed: ZeroDivisionError: no send"
    assert found["nothing-unsent"].judgement is Judgement.VALID


def test_a_worker_needs_none_of_the_packages_for_commands_and_pages():
    code = (
        "import sys; from tests.spark import histories; from rmqkit.spark import audit;"
        "from rmqkit.spark.audit.run_check import check;"
        "[run] = audit.found(histories.recorded()[:1]);"
        "assert check(run, 0).found;"
        "print({'jinja2', 'matplotlib', 'typer', 'rich', 'pyspark', 'numpy.testing'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_the_page_shows_the_worst_runs_with_their_evidence(monkeypatch):
    from rmqkit.drill.report import runs_page
    from rmqkit.spark import audit
    from rmqkit.spark.audit import run_audit, run_check

    monkeypatch.setattr(runs_page, "SHOWN_MAX", 3)
    names = ("replicas-1", "replicas-2", "replicas-1-phantom", "replicas-1-lost-queue-tail")
    recorded = {each[0]: each for each in histories.recorded()}
    runs = audit.found(recorded[name] for name in names)
    runs[1] = runs[1]._replace(why="the <fault> did not show")
    found = [each for run in runs if not run.why for each in run_check.check(run, audit.PROCESS_ROWS).found.values()]
    found.append(audit.PromiseAudit("replicas-2", "", Judgement.INCONCLUSIVE, (), 0, why=runs[1].why))
    text = audit.page(found, runs)
    assert "2 of 4 runs broke a promise." in text
    assert "4 runs: 2 broken, 1 inconclusive, 1 valid." in text
    assert all(f">{name}<" in text for name in names)
    assert re.findall(r'<h2 id="([^"]+)"', text) == [names[2], names[3], names[1]]
    assert "1 more run is only in the table" in text
    assert "the &lt;fault&gt; did not show" in text
    assert text.count("<svg") == 3
    lost = next(each for each in found if each.run == names[3] and each.broken)
    for violation in lost.violations[:3]:
        assert html.escape(violation.what) in text
    phantom = next(each for each in found if each.run == names[2] and each.promise == "nothing-unsent")
    assert f"<code>{phantom.violations[0].key}</code> {html.escape(phantom.violations[0].what)}" in text
    assert "— fault begins" in text
    assert not re.findall(r"(?:src|href)=[\"']?http", text), "a page loads nothing"

    monkeypatch.setattr(run_audit, "PROCESS_ROWS", 10)
    large = audit.AuditRun("large", runs[3].plan, Path("/nowhere/history.jsonl"))
    monkeypatch.setattr(audit.AuditRun, "rows", lambda self: 11)
    text = audit.page([each._replace(run="large") for each in found if each.run == names[3]], [large])
    assert "too large to be drawn here" in text
    assert html.escape(lost.violations[0].what) in text
    assert "<svg" not in text
