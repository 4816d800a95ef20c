"""The audit of drills: their histories as Spark tables, each promise as queries over all runs at once."""

from rmqkit.spark.audit.auditing import Audited, Violation, audit, exit_code, findings, judgements, prepared
from rmqkit.spark.audit.tables import TABLES, AuditError, Run

__all__ = [
    "TABLES",
    "AuditError",
    "Audited",
    "Run",
    "Violation",
    "audit",
    "exit_code",
    "findings",
    "judgements",
    "prepared",
]
