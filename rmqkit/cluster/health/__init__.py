"""Queries running nodes: readiness, replication, roles, takeovers, isolation."""
