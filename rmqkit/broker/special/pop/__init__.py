"""Pop: redelivers messages that were popped and not acked in time.

A pop gives messages to a client and hides them for its invisible time. The broker records them as a
checkpoint in the revive topic (`rmq_sys_REVIVE_LOG_<cluster>`) before it sends the answer. Acks are
records of the same queue, so they follow their checkpoint.

records     the checkpoint and ack records, as puts for the revive topic
pending     checkpoints that still have messages without an ack, by revive queue
reader      reads the revive topic into the pending checkpoints
counts      counters for `metrics`
metrics     the metrics of pop
acting_pops  pops and acks that an acting master has accepted, and that are not in its log
progress    how far the records of the revive topic are finished
foreign     messages in the log of another broker
redelivery  puts messages into retry topics
revive      the special duty: runs `reader`, and passes due checkpoints to `redelivery`

Two hard cases decided the form:

- Takeover with work pending. The acting master has the same revive topic, since it is replicated,
  and the consumer offset of the revive group. It reads from there and knows all checkpoints and
  acks of the master. What its own clients pop and ack cannot go into its log: it travels back with
  the progress of the duty (`acting_pops`), and the returning master appends it.
- kill -9 between the put of a retry message and the save of the progress. The checkpoint is read
  again. Its retry message has the same properties each time, so `DeliveryDedup` finds the one that
  is in the retry topic already.

Deviation. Apache makes checkpoints and acks timer messages: they reach the revive topic shortly
before the invisible time ends. Here they are written to the revive topic at once, and the duty
waits in memory. So an ack counts as soon as it is replicated, revive does not depend on the timer,
and a message returns at the end of its invisible time instead of 2 s or more later. The records
keep TIMER_DELIVER_MS, from which Apache reads the due time. If an Apache slave acts for our master,
it revives checkpoints early that wait behind others with a shorter time: at least once still holds.
Checkpoints that an Apache broker wrote arrive through the timer; their acks arrive after them, so
these wait longer (`TIMER_GRACE_MS`).
"""
