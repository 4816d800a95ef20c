"""Hand-made histories of timers, transactions and pop, with a fault of the master."""

from rmqkit.drill import history as names
from rmqkit.drill.history import History
from rmqkit.drill.plan import SERVICES, Mode, Plan

BROKER, MASTER, OTHER = "broker-a", "broker-a-0", "broker-b"
FAULT_MS, ENDS_MS, LOAD_ENDS_MS = 10_000, 15_000, 40_000
QUORUM = Plan(
    mode=Mode.parse("quorum"),
    replicas=2,
    groups=2,
    services=SERVICES,
    settings={"enableSlaveActingMaster": "true", "transactionCheckInterval": "1000", "transactionTimeOut": "1000"},
)
ASYNC = QUORUM.changed(mode=Mode.parse("async"))


class ServiceHand:
    """Builds a history of one message per service, with a fault of the master at `FAULT_MS`."""

    def __init__(self, harm="kill"):
        self.history = History()
        for at_ms in range(0, LOAD_ENDS_MS, 500):
            self.history.add(
                "node", client=MASTER, broker=BROKER, invoke_ms=at_ms, role="master", in_sync=2, state="master"
            )
        for at_ms, role in ((-20_000, "master"), (FAULT_MS - 1, "master"), (ENDS_MS, "master"), (LOAD_ENDS_MS, "master")):
            since_ms = 0 if at_ms < FAULT_MS else ENDS_MS
            self.history.add(
                "role", client=MASTER, value=f"{role}/online", broker=BROKER, invoke_ms=at_ms, broker_id=0, since=since_ms
            )
        facts = {"harm": harm, "node": MASTER, "role": "master", "broker": BROKER}
        self.history.add("event", key=names.FAULT_BEGINS, invoke_ms=FAULT_MS, **facts)
        self.history.add("event", key=names.FAULT_ENDS, invoke_ms=ENDS_MS)
        self.history.add("event", key=names.LOAD_ENDS, invoke_ms=LOAD_ENDS_MS)

    # --- timers

    def timer(self, key="t", *, at_ms=1_000, delay_ms=2_000, outcome="ok"):
        times = {"delay_ms": delay_ms, "due_ms": at_ms + delay_ms, "status": "SEND_OK"}
        return self._add("timer", key, at_ms, outcome=outcome, **times)

    def recall(self, key="t", *, at_ms=1_500, due_ms=3_000, outcome="ok"):
        return self._add("recall", key, at_ms, outcome=outcome, due_ms=due_ms)

    def timer_due(self, key="t", *, at_ms=3_100, offset=0, broker=BROKER, value=None, **extra):
        return self._add("timer-due", key, at_ms, offset=offset, broker=broker, value=value, stored_ms=at_ms, **extra)

    # --- transactions

    def half(self, key="x", *, at_ms=1_000, local="commit", decision="", outcome="ok"):
        words = {"local": local, "decision": decision or local, "status": "SEND_OK"}
        return self._add("half", key, at_ms, outcome=outcome, **words)

    def decide(self, key="x", *, at_ms=1_100, value="commit", by="end", outcome="ok"):
        return self._add("decide", key, at_ms, value=value, outcome=outcome, by=by)

    def visible(self, key="x", *, at_ms=1_200, offset=0, broker=BROKER, value=None, **extra):
        return self._add("visible", key, at_ms, offset=offset, broker=broker, value=value, stored_ms=at_ms, **extra)

    def acts(self, since_ms, until_ms):
        """Let the slave act as master meanwhile."""
        told = {"broker": BROKER, "broker_id": 1, "members": [1], "since": since_ms}
        for at_ms in (since_ms, until_ms):
            self.history.add("role", client="broker-a-1", value="acting/online", invoke_ms=at_ms, **told)
        return self

    # --- pop

    def send(self, key="m", *, at_ms=1_000):
        return self._add("send", key, at_ms, offset=0, status="SEND_OK")

    def read(self, key="m", *, offset=0):
        return self._add("read", key, LOAD_ENDS_MS, offset=offset)

    def pop(self, key="m", *, at_ms=1_200, invisible_ms=2_000, topic="t", value=None, member="popper-0"):
        times = {"pop_ms": at_ms, "invisible_ms": invisible_ms, "handle": f"{key} {at_ms}"}
        return self._add("popped", key, at_ms, offset=0, client=member, value=value, topic=topic, **times)

    def ack(self, key="m", *, pop_ms=1_200, at_ms=1_300, outcome="ok", member="popper-0"):
        return self._add("acked", key, at_ms, outcome=outcome, client=member, handle=f"{key} {pop_ms}")

    def pop_lost(self, *, at_ms, broker=BROKER):
        return self._add("pop", "", at_ms, value="", outcome="unknown", client="popper-0", broker=broker)

    def _add(self, kind, key, at_ms, *, client="c", value=None, broker=BROKER, offset=-1, outcome="ok", **extra):
        crc = f"crc {key}" if value is None else value
        place = {"broker": broker, "queue": 0, "offset": offset}
        self.history.add(kind, client=client, key=key, value=crc, invoke_ms=at_ms, outcome=outcome, **place, **extra)
        return self
