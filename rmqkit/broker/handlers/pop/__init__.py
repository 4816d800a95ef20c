"""Pop consumption: the broker chooses the messages, and each is acked for itself.

    POP        reads queues from the offsets that are next, stores a checkpoint for each queue, and
               answers once the checkpoints are as durable as a send
    ACK        stores an ack; the message is not handed out again
    CHANGE     stores a new checkpoint for one message, and acks the old one

The special duty (`broker/special/pop`) reads these records. It decides which messages are
redelivered, and when. It also knows all handles that are valid, so an ack of a handle that is
unknown, expired or acked already writes nothing.

offsets      the next offset of each group in each queue
waiters      pops that wait for messages
checks       what all requests check, in upstream's order
pops         POP_MESSAGE (200050)
orders       the batches of ordered pops
queue_reads  reads the queues of a pop
acks         ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053)
turn_acks    stores the single acks of a turn together
order_info   the batches on disk
order_acks   acks and changes of ordered pops
lookups      PEEK_MESSAGE (200052), NOTIFICATION (200054), POLLING_INFO (200055)
in_flight    GET_POP_IN_FLIGHT (60001, of rmqkit's own): which messages are invisible to the group
assignment   QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401)
"""
