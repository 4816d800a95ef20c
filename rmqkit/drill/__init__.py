"""Drills: break a cluster on purpose and prove per message what survived. See `docs/drills.md`."""
