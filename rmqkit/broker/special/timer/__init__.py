"""Timers: messages with an arbitrary due time wait in rmq_sys_wheel_timer.

duty           the special duty: accepts, indexes, delivers, and keeps the progress
progress       which timers are delivered (`config/timercheck`, code 60)
index          follows the timer topic: a unit in the timer log, a place in the wheel
plain_timers   reads stored timers without decoding them
backlog        timers that are stored and not indexed yet
slot_choice    the slot in which a timer waits
wheel          where the units of each slot are
slot           the work of one slot that is due
covered_slots  drops the slots that the copied progress covers
late           timers outside the wheel: their slot has passed
delivery       puts due timers into their topics
rewrite        turns a sent message into a waiting one, and that into a delivered or rolled one
counts         how many timers wait, arrive and are delivered: for code 28 and metrics
topic_counts   how many timers wait for each topic: for code 61, metrics and a file
unit_batch     the units that one turn adds to the timer log

What is on disk. The timer log (`rmqkit/store/timer_log.py`) and `timercheck` are Apache's, byte for
byte. The file `timerwheel` is not written: after a start both Apache and this broker rebuild the
wheel from the timer log, from the position that `timercheck` names on. Both can thus open the
other's store with timers pending, also after a kill.

A takeover. Each member indexes the replicated topic itself, and copies the progress of the member
that is on. Slots are the same on all members. What the last copy does not cover, but the log shows
as delivered, is left out.

A kill between a put and the save of the progress: the log has the delivered message, and the
restarted broker finds it there.
"""
