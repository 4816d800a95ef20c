"""The audit of drills: their histories as Spark tables, each promise as queries over all runs at once."""

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
