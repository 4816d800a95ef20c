"""The lock mode `strict`: a quorum of the broker group grants queue locks.

strict    the mode: votes, gives back, answers
ballot    one attempt to get a quorum for a client's queues
untold    what the other members are told of votes that were taken back
recall    whether this broker knows all votes that it has cast, and so may cast new ones
"""
