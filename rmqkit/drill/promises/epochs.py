"""Promises in controller mode: equal logs where epochs are equal, leases, and elections that end.

A master notes where its log ended when it was elected: the start of its epoch. So two logs that
have the same epoch have it with the same start, and between start and end the same bytes: at every
moment, also in logs that are cut later. Only ends may differ: the log of an isolated master grows
in an epoch that the others have ended. `epoch` rows have the checksum of each epoch up to the end
that it had at a poll, so two of them are compared if begin and end are equal. (A log whose first
files are gone begins behind the start of its first epoch.)

A master that no controller answers refuses messages when its lease is over. So when the next master
takes messages, the old one may do so as well for the rest of its lease at most, or until its next
question to the controllers (plus `MARGIN_MS`). All brokers are polled at once.

After the faults there must be one master, and all members must be in sync with it.

Only plans that name these promises make them: simulated ones. Real brokers do not report the bytes
of an epoch, and a real machine may be too slow for a limit.
"""

from rmqkit.drill.history import FAULT_ENDS, IN_SYNC_AGAIN, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged

MASTER = "master"
#: a lease lasts this share of the time-out of heartbeats; three heartbeats at least, if that is not
#: more than the largest share
LEASE, LEASE_MOST, LEASE_BEATS = 2 / 5, 4 / 5, 3
MARGIN_MS = 500


class EpochsEqual:
    name = "epochs-equal"
    text = "two logs with the same epoch have the same start of it, and the same bytes in it"

    def applies(self, plan: Plan) -> bool:
        return plan.elected and self.name in plan.promises

    def check(self, history: History, plan: Plan) -> Finding:
        starts: dict[tuple[str, str], HistoryRow] = {}
        pieces: dict[tuple[str, str, int, int], HistoryRow] = {}
        broken: list[Broken] = []
        compared = 0
        for row in history.by_kind["epoch"]:
            first = starts.setdefault((row.broker, row.key), row)
            if first.offset != row.offset:
                broken.append(Broken("", f"epoch {row.key} starts at {_where(first)}, and at {_where(row)}"))
            begin, end = int(row.extra["begin"]), int(row.extra["end"])
            other = pieces.setdefault((row.broker, row.key, begin, end), row)
            compared += other.client != row.client
            if other.value != row.value:
                what = f"bytes {begin} to {end} of epoch {row.key} differ: {_where(other)}, {_where(row)}"
                broken.append(Broken("", what))
        counts = {"epochs": len(starts), "pieces": len(pieces), "compared": compared}
        return judged(compared, broken, counts, lacking="" if compared else "no two logs had an epoch in common")


class LeaseKept:
    name = "lease-kept"
    text = "once the next master takes messages, the old one refuses them when its lease is over"

    def applies(self, plan: Plan) -> bool:
        return plan.elected and self.name in plan.promises

    def check(self, history: History, plan: Plan) -> Finding:
        beats_ms, timeout_ms = plan.setting("brokerHeartbeatInterval", 1_000) * LEASE_BEATS, plan.heartbeat_timeout_ms
        lease_ms = min(max(timeout_ms * LEASE, beats_ms), timeout_ms * LEASE_MOST)
        limit_ms = max(lease_ms, plan.setting("syncBrokerMetadataPeriod", 5_000)) + MARGIN_MS
        #: group -> (epoch of the newest master that took messages, since when)
        newest: dict[str, tuple[int, int]] = {}
        late: dict[tuple[str, int], HistoryRow] = {}
        facts = longest = 0
        for row in history.by_kind["node"]:
            if row.outcome != OK or not row.extra.get("takes"):
                continue
            facts += 1
            epoch, since_ms = newest.get(row.broker, (-1, 0))
            if row.extra["epoch"] > epoch:
                newest[row.broker] = (row.extra["epoch"], row.invoke_ms)
            elif row.extra["epoch"] < epoch:
                longest = max(longest, row.invoke_ms - since_ms)
                if row.invoke_ms - since_ms > limit_ms:
                    late.setdefault((row.client, row.extra["epoch"]), row)
        broken = [
            Broken("", f"{node} takes messages in epoch {epoch} at {row.invoke_ms} ms, although a newer master does")
            for (node, epoch), row in late.items()
        ]
        counts = {"looks": facts, "longest overlap ms": longest}
        return judged(facts, broken, counts, lacking="" if facts else "no master took messages")


class ElectionEnds:
    name = "election-ends"
    text = "after the fault a group has one master, and all its members are in sync with it"

    def applies(self, plan: Plan) -> bool:
        return plan.elected and self.name in plan.promises

    def check(self, history: History, plan: Plan) -> Finding:
        ended_ms, again_ms = history.event_ms(FAULT_ENDS), history.event_ms(IN_SYNC_AGAIN)
        if ended_ms is None:
            return judged(0, (), lacking="the fault did not end")
        last: dict[str, HistoryRow] = {}
        for row in history.by_kind["node"]:
            last[row.client] = row
        groups: dict[str, list[HistoryRow]] = {}
        for row in last.values():
            groups.setdefault(row.broker, []).append(row)
        broken = []
        for broker, rows in sorted(groups.items()):
            masters = [row for row in rows if row.outcome == OK and row.extra.get("role") == MASTER]
            if len(masters) != 1:
                found = ", ".join(row.client for row in masters) or "nobody"
                broken.append(Broken("", f"at the end the masters of {broker} are: {found}"))
            elif int(masters[0].extra.get("in_sync") or 0) < plan.replicas:
                found = f"{masters[0].extra.get('in_sync')} of {plan.replicas} members are in sync with {masters[0].client}"
                broken.append(Broken("", f"at the end {found}"))
        if again_ms is None and groups:
            broken.append(Broken("", f"no steady state within {plan.recover_max_ms} ms after the end of the fault"))
        counts = {"groups": len(groups)} | ({} if again_ms is None else {"steady after ms": again_ms - ended_ms})
        return judged(len(groups), broken, counts, lacking="" if groups else "no broker reported its state")


def _where(row: HistoryRow) -> str:
    return f"{row.offset} on {row.client} at {row.invoke_ms} ms ({row.value})"
