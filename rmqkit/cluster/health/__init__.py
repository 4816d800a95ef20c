"""What running nodes answer: readiness, replication, roles, takeovers."""
