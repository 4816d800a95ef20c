"""The audit of drills: their histories as Spark tables, each promise as queries over all runs at once."""

from rmqkit.spark.audit.auditing import PromiseAudit, Violation, audit
from rmqkit.spark.audit.tables import AuditError, found
from rmqkit.spark.audit.told import as_json, exit_code, judgements, lines

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
