"""The lock mode `strict`: a quorum of the broker group grants queue locks.

strict    the mode: votes, gives back, answers
ballot    one attempt to get a quorum for a client's queues
untold    what the other members are told of votes that were taken back
adopted   votes of others that this broker takes for its own, as it may have forgotten that it cast them
recall    whether this broker knows all votes that it has cast, and so may cast new ones
"""
