"""Checks the audit on Spark, `make audit`: against the in-process checkers, and at a large size.

    python -m tests.soak.audit [--histories 500] [--sends 1000000] [--seed 1] [--memory 3g]

1. Two audits of random histories (`tests/spark/histories.py`), with planted defects and false
   answers: one as it is, and one that treats every run as too large for a process, so that the
   promises of messages are checked in parts. For each promise of each run, both must have the
   judgement, facts and violations of the checker. Each promise must be broken by some of the
   histories.
2. One audit of a drill with many sends, ten rows per send, generated with Spark (`audit_rows.py`).
   It must find exactly the planted violations. A drill of a tenth of the size also goes through the
   checkers in this process. They must agree, and their time is printed beside the audit's.

Prints its results as JSON. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rmqkit.drill import runs as folders
from rmqkit.drill.arrow.rows import read_history
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.promises import PROMISES
from rmqkit.spark import audit, session
from tests.soak import audit_rows
from tests.spark import histories
from tests.spark.test_audit import differences


def agree(spark: Any, given: list[histories.Recorded], process_rows: int) -> dict[str, Any]:
    began_s = time.monotonic()
    found = audit.audit(spark, given, process_rows=process_rows)
    took_s = time.monotonic() - began_s
    broken = Counter(each.promise for each in found if each.broken)
    different = differences(given, found)
    for each in different[:5]:
        print(each, file=sys.stderr)
    return {
        "histories": len(given),
        "rows": sum(len(history) for _name, history, _plan in given),
        "seconds": round(took_s, 1),
        "findings": len(found),
        "broken": dict(sorted(broken.items())),
        "different": len(different),
        "right": not different and set(broken) == set(PROMISES),
    }


PLAN = Plan(
    mode=Mode.parse("quorum"),
    replicas=3,
    settings={"enableSlaveActingMaster": "true", "lockMode": "strict"},
)


def at_size(spark: Any, sends: int, folder: Path) -> dict[str, Any]:
    """Audit one generated history. Its seconds include reading, as in `rmqkit pipeline audit`."""
    run = folder / f"sends-{sends}"
    run.mkdir()
    (run / folders.PLAN).write_text(PLAN.dumps(), encoding="utf-8")
    rows = audit_rows.write(spark, sends, run / folders.PARQUET)
    began_s = time.monotonic()
    found = audit.audit(spark, [run])
    took_s = time.monotonic() - began_s
    broken = {each.promise: each.broken for each in found}
    keys = {each.promise: sorted({v.key for v in each.violations if v.key}) for each in found}
    wanted = {name: sorted(audit_rows.PLANTED.get(name, ())) for name, made in PROMISES.items() if made().applies(PLAN)}
    wrong = {name: (broken.get(name), keys.get(name)) for name, those in wanted.items() if keys.get(name) != those}
    wrong |= {name: (broken.get(name),) for name, count in audit_rows.COUNTS.items() if broken.get(name) != count}
    return {
        "sends": sends,
        "rows": rows,
        "seconds": round(took_s, 1),
        "facts": sum(each.facts for each in found),
        "broken": broken,
        "wrong": wrong,
        "right": not wrong,
    }


def in_process(spark: Any, folder: Path, sends: int) -> dict[str, Any]:
    """Run the checkers on a history, from Parquet to findings, and compare them with the audit."""
    run = folder / f"sends-{sends}"
    began_s = time.monotonic()
    history = read_history(run / folders.PARQUET)
    read_s = time.monotonic() - began_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    for make in PROMISES.values():
        make().check(history, PLAN)
    took_s = time.monotonic() - began_s
    different = differences([(run.name, history, PLAN)], audit.audit(spark, [run]))
    return {
        "sends": sends,
        "rows": len(history),
        "seconds": round(took_s, 1),
        "of these reading": round(read_s, 1),
        "peak GB": round(peak_gb, 2),
        "different": len(different),
        "right": not different,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit")
    parser.add_argument("--histories", type=int, default=500)
    parser.add_argument("--sends", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="3g", help="memory of the JVM")
    asked = parser.parse_args(arguments)
    spark = session("audit", master="local[2]", conf={"spark.driver.memory": asked.memory})
    found: dict[str, Any] = {}
    if asked.histories:
        given = [*histories.mutated(histories.recorded(), asked.histories, asked.seed), *histories.elections()]
        found["agree"] = agree(spark, given, audit.PROCESS_ROWS)
        found["agree, in parts"] = agree(spark, given, 0)
        print(json.dumps(found), file=sys.stderr, flush=True)
    if asked.sends:
        with tempfile.TemporaryDirectory(prefix="rmqkit-audit-") as folder:
            found["small"] = at_size(spark, asked.sends // 10, Path(folder))
            found["in process"] = in_process(spark, Path(folder), asked.sends // 10)
            print(json.dumps(found), file=sys.stderr, flush=True)
            found["large"] = at_size(spark, asked.sends, Path(folder))
    print(json.dumps(found, indent=1))
    spark.stop()
    return 0 if all(each["right"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
