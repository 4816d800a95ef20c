"""Promises: every send ends within its time limit, and after the fault everything works again.

A send that ends with FLUSH_SLAVE_TIMEOUT has waited at most `slaveTimeout`, one that ends with
FLUSH_DISK_TIMEOUT at most `syncFlushTimeout`, however many slaves are slow at the same time
(Apache's issue 9897: more than 20 s). `MARGIN_MS` allows for a busy machine with few cores.
"""

from rmqkit.drill.history import FAULT_ENDS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import allowed_ahead, fault_of

MARGIN_MS = 2_000
REFUSED = "slaves are ahead of their master, which this fault allows: the quorum refuses puts until an operator decides"
SLAVE_TIMEOUT_MS = 3_000
SYNC_FLUSH_TIMEOUT_MS = 5_000


class WaitsBounded:
    name = "waits-bounded"
    text = "every send ends within its time limit: with an answer, an error or a timeout"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        limits = {
            "FLUSH_SLAVE_TIMEOUT": plan.setting("slaveTimeout", SLAVE_TIMEOUT_MS),
            "FLUSH_DISK_TIMEOUT": plan.setting("syncFlushTimeout", SYNC_FLUSH_TIMEOUT_MS),
        }
        fault = fault_of(history)
        # If the fault hits a slave, the master answers within its own limits, even to a client that
        # would wait longer.
        answer_ms = max(limits.values()) if fault is not None and not fault.hits_master else None
        broken = []
        longest = 0
        for row in history.sends:
            took_ms = row.complete_ms - row.invoke_ms
            longest = max(longest, took_ms)
            own_ms = int(row.extra.get("timeout_ms", plan.send_timeout_ms))
            limit_ms = min(own_ms, limits.get(row.status, own_ms)) + MARGIN_MS
            if answer_ms is not None and row.outcome == OK:
                limit_ms = min(limit_ms, answer_ms + MARGIN_MS)
            if took_ms > limit_ms:
                ended = row.status or str(row.extra.get("error", row.outcome))
                broken.append(Broken(row.key, f"ended after {took_ms} ms ({ended}); the limit is {limit_ms} ms"))
        counts = {"sends": len(history.sends), "longest ms": longest}
        counts |= {status: sum(row.status == status for row in history.sends) for status in limits}
        return judged(len(history.sends), broken, {name: count for name, count in counts.items() if count})


class Recovers:
    name = "recovers"
    text = "after the fault every writer is acknowledged again, every broker serves, and every slave follows its master"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        ended_ms = history.event_ms(FAULT_ENDS)
        if ended_ms is None:
            return judged(0, (), lacking="the fault did not end")
        until_ms = ended_ms + plan.recover_max_ms
        first: dict[str, HistoryRow] = {}
        tried: dict[str, int] = {}
        for row in history.sends:
            if row.invoke_ms >= ended_ms:
                tried[row.client] = tried.get(row.client, 0) + 1
            if row.outcome == OK and row.complete_ms >= ended_ms:
                first.setdefault(row.client, row)
        writers = sorted({row.client for row in history.sends})
        refused = refusing(history, plan)
        broken = []
        slowest = 0
        for writer in writers:
            again = first.get(writer)
            if again is not None:
                slowest = max(slowest, again.complete_ms - ended_ms)
            late = again.complete_ms > until_ms if again is not None else tried.get(writer)
            if late and not refused:
                broken.append(
                    Broken("", f"{writer} was not acknowledged within {plan.recover_max_ms} ms after the end of the fault")
                )
        for end in history.by_kind["end"]:
            if end.outcome != OK:
                broken.append(Broken("", f"{end.client} does not serve queue {end.queue}: {end.extra.get('error', '')}"))
        broken += _not_following(history, plan)
        lacking = "" if first or broken or refused else "no message was sent after the fault"
        counts = {"writers": len(writers), "slowest ms": slowest}
        return judged(len(first) + len(refused), broken, counts, lacking=lacking, why=REFUSED if refused else "")


def _not_following(history: History, plan: Plan) -> list[Broken]:
    """Return a violation for each slave that should follow its master at the end but does not."""
    may_not = allowed_ahead(history, plan)
    broken = []
    for look in history.by_kind["node"]:
        state = look.extra.get("state")
        is_slave = look.outcome == OK and look.extra.get("final") and look.extra.get("role") == "slave"
        if is_slave and state and state != "following" and look.client not in may_not:
            broken.append(
                Broken("", f"{look.client} does not follow its master: {state} {look.extra.get('why', '')}".rstrip())
            )
    return broken


def refusing(history: History, plan: Plan) -> list[str]:
    """Return the slaves whose absence rightly makes a quorum refuse puts.

    They are ahead of their master, and an operator must decide what to do. The list is empty if the
    quorum accepts puts.
    """
    ahead = allowed_ahead(history, plan)
    settings = {**plan.settings, **plan.seen}
    auto = str(settings.get("enableAutoInSyncReplicas", "false")).lower() == "true"
    wanted = plan.setting("inSyncReplicas", min(2, plan.replicas))
    if plan.mode.replication is not ReplicationMode.QUORUM or auto or plan.replicas - len(ahead) >= wanted:
        return []
    return ahead
