"""Audits drills with Spark: loads their histories as tables and checks each promise with SQL.

One query checks a promise for all runs at once. Start with `audit` in `run_audit`; `report` turns
its findings into lines and an exit code.
"""

from rmqkit.spark.audit.report import as_json, exit_code, judgements, lines
from rmqkit.spark.audit.run_audit import PromiseAudit, Violation, audit
from rmqkit.spark.audit.tables import AuditError, found

__all__ = [
    "AuditError",
    "PromiseAudit",
    "Violation",
    "as_json",
    "audit",
    "exit_code",
    "found",
    "judgements",
    "lines",
]
