"""Transactions: half messages wait in RMQ_SYS_TRANS_HALF_TOPIC until their producer decides.

    send (TRAN_MSG=true)        a half message is appended to the half topic, queue 0
    END_TRANSACTION, commit     the message is appended to its own topic; an op names the half
    END_TRANSACTION, rollback   an op names the half
    no decision in time         the half is put again at the end of the half topic, and a producer
                                of the group is asked (CHECK_TRANSACTION_STATE)
    too many checks, too old    the half is put into TRANS_CHECK_MAX_TIME_TOPIC

So an undecided half moves on to the end of its queue, and one offset says how far the queue is
finished.

An acting master appends nothing to its log. "Put again" means escape there: the half becomes a
prepared message on a master of another group, which asks the producer. A decision that reaches the
acting master first is kept as progress (`decisions`). If it is a commit, the message escapes.

checks     the duty: judges halves in order, puts them again and asks producers
decisions  outcomes of halves that were ended while the master was away
outcomes   which halves are decided, from the ops in the log
ops        decided halves whose op waits to be written with others
recent_halves  the newest halves, which can be ended without reading the log
halves     reads half messages from the half queue
questions  asks a producer about a half
counts     how transactions ended, and how many wait: for code 28 and metrics
progress   the offsets of CID_RMQ_SYS_TRANS in the table of consumer offsets
search     finds a newer copy of a half, or its committed message, by its unique id
rewrite    the forms of a transactional message: half, committed, checked again, given up, escaped
"""
