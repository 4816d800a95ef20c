"""Audits drills with Spark: the checkers of drills judge each run in a task of its own.

Start with `audit` in `run_audit`. `run_check` is what a worker does, `part_checks` what workers do
with a run that is too large for one process. `tables` writes rows for queries of a user, `report`
turns findings into lines and an exit code.
"""

from rmqkit.spark.audit.report import as_json, exit_code, judgements, lines, page
from rmqkit.spark.audit.run_audit import audit
from rmqkit.spark.audit.run_check import PROCESS_ROWS, PromiseAudit, Violation
from rmqkit.spark.audit.runs import AuditError, AuditRun, found

__all__ = [
    "PROCESS_ROWS",
    "AuditError",
    "AuditRun",
    "PromiseAudit",
    "Violation",
    "as_json",
    "audit",
    "exit_code",
    "found",
    "judgements",
    "lines",
    "page",
]
