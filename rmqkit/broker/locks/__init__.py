"""Queue locks for ordered consumption, and the lock modes that decide on them.

lock_table       which member of a group holds which queue, and until when
contract         what a lock mode is (`LockMode`); the built-in table; the mode `loose`
strict           the mode `strict`: a quorum of the broker group grants
ballot           one attempt to collect a quorum for a client's queues
unlock_retries   repeats vote withdrawals until every peer acknowledges
recovered_votes  votes learned from peers after a restart: they block, but never grant
recall           whether this broker knows all votes that it cast, and so may cast new ones
"""
