"""Audits drills with Spark: the checkers of drills judge each run in a task of its own.

Start with `audit` in `run_audit`. `run_check` is what workers do. `tables` writes rows for queries
of a user.
"""

from rmqkit.spark.audit.run_audit import COLUMNS, as_json, audit, exit_code, found, judgements, lines, page
from rmqkit.spark.audit.run_check import PROCESS_ROWS, AuditError, AuditRun, PromiseAudit, Violation

__all__ = [
    "COLUMNS",
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
