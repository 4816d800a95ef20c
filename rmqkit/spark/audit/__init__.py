"""The audit of drills: their histories as Spark tables, each promise as queries over all runs at once."""

from rmqkit.spark.audit.auditing import QUERIES, Audited, Violation, audit, findings, prepared
from rmqkit.spark.audit.tables import TABLES, AuditError, Run, found
from rmqkit.spark.audit.told import Line, as_json, exit_code, judgements, lines

__all__ = [
    "QUERIES",
    "TABLES",
    "AuditError",
    "Audited",
    "Line",
    "Run",
    "Violation",
    "as_json",
    "audit",
    "exit_code",
    "findings",
    "found",
    "judgements",
    "lines",
    "prepared",
]
