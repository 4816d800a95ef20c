"""Promise: pop gives each message at least once, hides it while it is popped, and ends at its ack.

At least once. Every acknowledged message of the topic is popped, if the mode promises that the
master still has it. A pop that nobody acked ends in another pop, once its invisible time is over.

Invisible. From `pop_ms` until `invisible_ms` later, no member gets the message again.

Acked. After an ack that is confirmed within the invisible time, no member gets the message again. A
later ack is answered with success as well, as in Apache, but the message may be on its way back.

In these cases members get a message again although it is invisible or acked, because no broker can
avoid it. Each case is counted:

- The pop, or the ack, was in the last second before a takeover or a return (`allowed_again`). The
  successor knows neither its record, if it was not replicated, nor the offset that was popped next.
- A pop got no answer, so nobody has the messages that the broker popped. A successor that does not
  know of this pop gives them to others, and the broker gives them once more after its return.
- The invisible time ended in that second: the old master and its successor both put the message
  into the retry topic.
- Each of these makes a second copy. If neither is acked, both copies come back, and two members can
  hold the message again.
- The message was stored twice, because its producer sent it again after a send without an answer.
  These are two messages with one key.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rmqkit.drill.history import LOAD_ENDS, OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import POP, Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.delays import GIVEN_BACK_MS, ON_ITS_WAY_MS, allowed_again, lost_of
from rmqkit.drill.promises.facts import with_sends

#: wall times are rounded to ms, on both sides
ROUNDED_MS = 2
#: how often a broker writes consumer offsets, to which the progress of revive belongs
FLUSH_MS = 5_000
#: how long after its invisible time a message may take to be popped again: the retry topic is read
#: in turn with the others, by members with pauses
RETURN_MS = 4_000


class PopKept:
    name = "pop-kept"
    text = "a message is popped at least once, by nobody else while it is invisible, and never again once acked"

    def applies(self, plan: Plan) -> bool:
        return POP in plan.services

    def check(self, history: History, plan: Plan) -> Finding:
        sent = {row.key: row for row in history.sends}
        pops: dict[str, list[HistoryRow]] = {}
        broken: list[Broken] = []
        popped = sorted(history.by_kind["popped"], key=lambda each: (int(each.extra["pop_ms"]), each.op))
        for row, _ in with_sends(popped, sent, broken, how="popped"):
            pops.setdefault(row.key, []).append(row)
        acks = _acks(history)
        lost, excused = lost_of(history, plan, ((row, row.complete_ms) for row in sent.values() if row.key not in pops))
        doubled = _doubled(history, pops)
        seen = RepeatedPops(history, plan)
        for key, rows in pops.items():
            if key not in doubled:
                seen.check(sent[key], rows, acks)
        left = _never_popped_again(history, pops, acks)
        counts = {
            "acknowledged": sum(row.outcome == OK for row in sent.values()),
            "popped": len(pops),
            "pops": sum(map(len, pops.values())),
            "acked": len({row.key for row in history.by_kind["acked"] if row.outcome == OK}),
            "acks without an answer": sum(row.outcome == UNKNOWN for row in history.by_kind["acked"]),
            "returned": sum(len(rows) - 1 for rows in pops.values()),
            "again while invisible, allowed": seen.invisible,
            "again after the ack, allowed": seen.acked,
            "again as a second copy": seen.copies,
            "pops without an answer": len(seen.lost),
            "stored twice by their producer": len(doubled),
            "lost where nothing is promised": excused,
        }
        facts = len(sent) + sum(map(len, pops.values()))
        lacking = "" if pops else "no message was popped"
        return judged(facts, [*broken, *lost, *seen.broken, *left], counts, lacking=lacking)


class RepeatedPops:
    """Judges pops of messages that were popped before."""

    def __init__(self, history: History, plan: Plan) -> None:
        save_ms = plan.setting("flushConsumerOffsetInterval", FLUSH_MS)
        # An ack is answered before the slave copies it, so an isolation cuts off the last acks.
        self._allowed = allowed_again(history, plan, save_ms, copied_ms=GIVEN_BACK_MS)
        self.broken: list[Broken] = []
        #: pops without an answer
        self.lost = history.by_kind["pop"]
        #: repeated pops that are allowed: while invisible, after an ack, as a second copy
        self.invisible = self.acked = self.copies = 0

    def check(self, send: HistoryRow, rows: Sequence[HistoryRow], acks: Mapping[str, HistoryRow]) -> None:
        """Check the pops of one message, in order of their pop times."""
        key = send.key
        acked: HistoryRow | None = None
        #: copies that the broker may have and no ack has ended
        copies = 1 + self._is_lost_copy(send, rows[0])
        #: ends of the invisible times of the pops without an ack
        ends_ms: list[int] = []
        for before, row in pairwise(rows):
            until_ms = int(before.extra["pop_ms"]) + int(before.extra["invisible_ms"])
            ack = acks.get(str(before.extra["handle"]))
            if ack is not None and ack.outcome == OK and ack.complete_ms <= until_ms:
                acked = acked or ack
                copies -= 1
            else:
                ends_ms.append(until_ms)
                copies += self._is_in_window(until_ms)
            pop_ms = int(row.extra["pop_ms"])
            holders = sum(pop_ms + ROUNDED_MS < end_ms for end_ms in ends_ms)
            if acked is not None and pop_ms > acked.complete_ms + ROUNDED_MS:
                if self._is_allowed(acked):
                    self.acked += 1
                elif holders < copies:
                    self.copies += 1
                else:
                    what = f"{acked.client} acked it at {acked.complete_ms} ms, {row.client} popped it again at {pop_ms} ms"
                    self.broken.append(Broken(key, what))
                continue
            if pop_ms + ROUNDED_MS < until_ms:
                if self._is_allowed(before):
                    self.invisible += 1
                    copies += 1
                elif holders < copies:
                    self.copies += 1
                else:
                    what = (
                        f"{before.client} popped it at {before.extra['pop_ms']} ms, invisible until {until_ms} ms, but"
                        f" {row.client} popped it at {pop_ms} ms"
                    )
                    self.broken.append(Broken(key, what))

    def _is_lost_copy(self, send: HistoryRow, first: HistoryRow) -> bool:
        """Return whether a pop without an answer may have popped the message earlier."""
        since_ms, until_ms = send.invoke_ms, int(first.extra["pop_ms"])
        return any(
            each.broker == first.broker and each.invoke_ms <= until_ms and each.complete_ms >= since_ms
            for each in self.lost
        )

    def _is_allowed(self, row: HistoryRow) -> bool:
        """Return whether the record of this pop or ack may be unknown to a successor."""
        return self._is_in_window(row.complete_ms)

    def _is_in_window(self, at_ms: int) -> bool:
        return any(since_ms <= at_ms <= until_ms for since_ms, until_ms in self._allowed)


def _acks(history: History) -> dict[str, HistoryRow]:
    """Return the ack of each handle, the confirmed one if there are several."""
    found: dict[str, HistoryRow] = {}
    for row in history.by_kind["acked"]:
        handle = str(row.extra["handle"])
        if handle not in found or row.outcome == OK:
            found.setdefault(handle, row)
    return found


def _doubled(history: History, pops: Mapping[str, Sequence[HistoryRow]]) -> set[str]:
    """Return the keys of messages that are stored at several places of the topic."""
    places: dict[str, set[tuple[str, int, int]]] = {}
    for row in history.reads:
        if row.outcome == OK:
            places.setdefault(row.key, set()).add((row.broker, row.queue, row.offset))
    for key, rows in pops.items():
        for row in rows:
            if not str(row.extra["topic"]).startswith("retry"):
                places.setdefault(key, set()).add((row.broker, row.queue, row.offset))
    return {key for key, found in places.items() if len(found) > 1}


def _never_popped_again(
    history: History, pops: Mapping[str, Sequence[HistoryRow]], acks: Mapping[str, HistoryRow]
) -> list[Broken]:
    """Return the messages that were popped, not acked, and never popped again."""
    end_ms = history.event_ms(LOAD_ENDS)
    broken = []
    for key, rows in pops.items():
        last = max(rows, key=lambda row: int(row.extra["pop_ms"]) + int(row.extra["invisible_ms"]))
        if any(str(row.extra["handle"]) in acks for row in rows) or end_ms is None:
            continue
        back_ms = int(last.extra["pop_ms"]) + int(last.extra["invisible_ms"])
        if back_ms + RETURN_MS + ON_ITS_WAY_MS <= end_ms:
            what = f"popped last at {last.extra['pop_ms']} ms by {last.client}, not acked, and not popped again"
            broken.append(Broken(key, f"{what} after {back_ms} ms"))
    return broken
