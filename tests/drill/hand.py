"""Hand-made histories for the checkers' tests: a few rows of a drill, all of them known."""

from rmqkit.drill import history as names
from rmqkit.drill.history import FAIL, UNKNOWN, History
from rmqkit.drill.plan import Mode, Plan

MASTER, SLAVE, BROKER = "broker-a-0", "broker-a-1", "broker-a"
BEGIN_MS, END_MS, QUIET_MS = 1_000, 2_000, 5_000
PLAN = Plan(
    mode=Mode.parse("quorum"),
    replicas=2,
    recover_max_ms=10_000,
    settings={"enableSlaveActingMaster": "true", "lockMode": "strict"},
)


class Hand:
    """Builds a history row by row; `whole()` returns one that keeps every promise."""

    def __init__(self) -> None:
        self.history = History()

    def send(self, key, offset=-1, *, at_ms=100, took_ms=5, writer="writer-0", queue=0, status="SEND_OK", outcome="ok"):
        extra = {"status": status} if outcome == "ok" else {"error": "no answer"}
        self.history.add(
            "send",
            client=writer,
            key=key,
            value=f"crc {key}",
            invoke_ms=at_ms,
            complete_ms=at_ms + took_ms,
            outcome=outcome,
            broker=BROKER,
            queue=queue,
            offset=offset,
            timeout_ms=3_000,
            **extra,
        )
        return self

    def unknown(self, key, **more):
        return self.send(key, outcome=UNKNOWN, **more)

    def failed(self, key, **more):
        return self.send(key, outcome=FAIL, **more)

    def deliver(self, key, offset, *, at_ms=200, queue=0, group="g", value=None, client="c"):
        self.history.add(
            "deliver",
            client=client,
            key=key,
            value=f"crc {key}" if value is None else value,
            invoke_ms=at_ms,
            broker=BROKER,
            queue=queue,
            offset=offset,
            group=group,
        )
        return self

    def read(self, node, *keys, first=0, queue=0, end=None, ok=True):
        """Add the final reading of a node's queue: these messages from offset `first` on; None is
        a hole."""
        for offset, key in enumerate(keys, first):
            if key is not None:
                self.history.add(
                    "read",
                    client=node,
                    key=key,
                    value=f"crc {key}",
                    invoke_ms=QUIET_MS,
                    broker=BROKER,
                    queue=queue,
                    offset=offset,
                )
        self.history.add(
            "end",
            client=node,
            invoke_ms=QUIET_MS,
            outcome="ok" if ok else FAIL,
            broker=BROKER,
            queue=queue,
            offset=first + len(keys) if end is None else end,
            offset_min=first,
            role="master" if node == MASTER else "slave",
        )
        return self

    def fault(self, harm="kill", node=MASTER):
        role = "master" if node == MASTER else "slave"
        self.event(names.FAULT_BEGINS, BEGIN_MS, broker=BROKER, harm=harm, node=node, role=role)
        return self.event(names.FAULT_ENDS, END_MS)

    def event(self, key, at_ms, **extra):
        self.history.add("event", key=key, invoke_ms=at_ms, **extra)
        return self

    def in_sync(self, at_ms, count, *, state="serving", node=MASTER, final=False):
        role = "master" if node == MASTER else "slave"
        self.history.add(
            "node", client=node, invoke_ms=at_ms, broker=BROKER, role=role, in_sync=count, state=state, final=final
        )
        return self

    def committed(self, offset, at_ms, *, node=MASTER, boot="1", queue=0, final=False, **more):
        self.history.add(
            "committed",
            client=node,
            key="g",
            invoke_ms=at_ms,
            broker=BROKER,
            queue=queue,
            offset=offset,
            boot=boot,
            final=final,
            **more,
        )
        return self

    def log(self, node, offset, value, size=100):
        role = "master" if node == MASTER else "slave"
        self.history.add(
            "log", client=node, value=value, invoke_ms=QUIET_MS, broker=BROKER, offset=offset, role=role, size=size
        )
        return self

    def confirm(self, node, at_ms, *, epoch, offset):
        """Add a poll of an elected master's confirm offset."""
        more = {"role": "master", "epoch": epoch, "confirm": offset}
        self.history.add("node", client=node, invoke_ms=at_ms, broker=BROKER, **more)
        return self

    def epoch(self, node, epoch, start, end, value, *, at_ms=900):
        """Add the checksum of the bytes of an epoch of a node's log."""
        told = {"begin": start, "end": end, "boot": "1"}
        self.history.add(
            "epoch", client=node, key=str(epoch), value=value, invoke_ms=at_ms, broker=BROKER, offset=start, **told
        )
        return self

    def takes(self, node, at_ms, *, epoch):
        """Add a poll of a master that takes messages."""
        more = {"role": "master", "epoch": epoch, "takes": True, "in_sync": 2}
        self.history.add("node", client=node, invoke_ms=at_ms, broker=BROKER, **more)
        return self

    def role(self, value, at_ms, *, node=MASTER, members=(0, 1), until_ms=None, boot="1", epoch=None):
        """Add a poll of a node's role; "" means no answer. `until_ms`: last poll with this role."""
        broker_id = int(node.rpartition("-")[2])
        told = {"members": list(members), "broker_id": broker_id, "boot": boot} if value else {}
        told |= {} if epoch is None else {"epoch": epoch}
        for each_ms in (at_ms,) if until_ms is None else (at_ms, until_ms):
            self.history.add(
                "role",
                client=node,
                key=value.partition("/")[0],
                value=value,
                invoke_ms=each_ms,
                outcome="ok" if value else FAIL,
                broker=BROKER,
                **told,
            )
        return self

    def lock(self, client, at_ms, *, queue=0, node=MASTER, outcome="ok", lease_ms=60_000):
        extra = {"granted_until": at_ms + lease_ms} if outcome == "ok" else {}
        common = {"client": client, "key": "g-lock", "invoke_ms": at_ms, "complete_ms": at_ms + 2}
        self.history.add("lock", outcome=outcome, broker=BROKER, queue=queue, node=node, **common, **extra)
        return self

    def unlock(self, client, at_ms, *, queue=0, outcome="ok"):
        self.history.add(
            "unlock", client=client, key="g-lock", invoke_ms=at_ms, outcome=outcome, broker=BROKER, queue=queue
        )
        return self

    def delay(self, key, at_ms, *, delay_ms=1_000, outcome="ok"):
        extra = {"status": "SEND_OK"} if outcome == "ok" else {"error": "no answer"}
        self.history.add(
            "delay",
            client="delayer",
            key=key,
            value=f"crc {key}",
            invoke_ms=at_ms,
            complete_ms=at_ms + 3,
            outcome=outcome,
            broker=BROKER,
            level=1,
            delay_ms=delay_ms,
            due_ms=at_ms + delay_ms,
            **extra,
        )
        return self

    def due(self, key, at_ms, *, broker=BROKER, offset=0, value=None, stored_ms=None, by=""):
        escaped = {"escaped_from": f"{BROKER}:SCHEDULE:1:{key}", "escaped_by": by} if by else {}
        self.history.add(
            "due",
            client="delayed-0",
            key=key,
            value=f"crc {key}" if value is None else value,
            invoke_ms=at_ms,
            broker=broker,
            queue=0,
            offset=offset,
            group="g-delayed",
            stored_ms=at_ms if stored_ms is None else stored_ms,
            **escaped,
        )
        return self

    def takeover(self):
        """The slave acts from 1,100 to 2,150 ms; the master is back at 2,100, online at 2,130."""
        self.role("master/online", 0, until_ms=990).role("", 1_010).role("", 2_080)
        self.role("master/pre-online", 2_100, until_ms=2_120, boot="2").role(
            "master/online", 2_130, until_ms=QUIET_MS, boot="2"
        )
        self.role("slave/online", 0, node=SLAVE, until_ms=1_080)
        self.role("acting/online", 1_100, node=SLAVE, members=(1,), until_ms=2_140)
        return self.role("slave/online", 2_150, node=SLAVE, until_ms=QUIET_MS)


def whole():
    """Return three messages, two replicas and one kill, with every promise kept."""
    hand = Hand().fault().in_sync(0, 2).takeover()
    hand.lock("locker-0", 100).lock("locker-0", 1_200, node=SLAVE).unlock("locker-0", 1_300).lock("locker-1", 1_310)
    hand.delay("s", 200).delay("t", 300).due("s", 1_230, broker="broker-b", by="broker-a:1").due("t", 2_200)
    for offset, key in enumerate("abc"):
        hand.send(key, offset, at_ms=100 * (offset + 1)).deliver(key, offset, at_ms=1_500 + offset)
        for node in (MASTER, SLAVE):
            hand.committed(offset + 1, 2_000 + 100 * offset, node=node)
    hand.in_sync(900, 2).send("d", 3, at_ms=2_500).deliver("d", 3, at_ms=2_600).in_sync(3_000, 2)
    hand.event(names.LOAD_ENDS, 4_000)
    for node in (MASTER, SLAVE):
        hand.read(node, "a", "b", "c", "d").log(node, 0, "x").log(node, 100, "y").committed(
            4, QUIET_MS, node=node, final=True
        )
    return hand


def elected():
    """Return a history: the master of epoch 1 confirmed 300, and another one of epoch 2 does so."""
    hand = Hand().role("master/online", 500, epoch=1).confirm(MASTER, 900, epoch=1, offset=300)
    hand.role("slave/online", 2_600, epoch=2)
    return hand.role("master/online", 2_500, node=SLAVE, epoch=2).confirm(SLAVE, 2_600, epoch=2, offset=300)
