"""Special duties: work that exactly one member of a broker group does."""
