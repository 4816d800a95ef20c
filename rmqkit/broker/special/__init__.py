"""Special duties: work that exactly one member of a broker group does.

contract        what a special duty and its destination must provide
table           the list of special duties
duties          drives all duties of a broker together
destinations    where due messages go: a master's own store, or the escape of an acting master
fetch           asks another member of the group for its progress
delivery_dedup  finds messages that were delivered already
delay/          the duty of the delay levels
timer/          the duty of messages with an arbitrary due time
transactions/   the duty of half messages
pop/            the duty of popped messages that are not acked in time
metrics         the metrics of timers and transactions
"""
