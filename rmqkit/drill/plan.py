"""A plan: everything that defines a drill. It runs on real processes and in the simulator.

A **mode** is the meaning of an acknowledgement: which replicas have the message (`ReplicationMode`),
and whether it is on disk (`Flush`). The mode follows from the settings of a master (`Mode.of`). A
word such as `quorum` or `sync+sync-flush` chooses the settings (`Mode.parse`, `Mode.settings`).

All randomness comes from the seed: what each writer sends when, and to which queue
(`workload.script`), and what a fault draws. A run keeps its plan as `plan.json`; a replay runs it
again. So a recorded plan also has what the master reported of its settings (`Plan.seen`), and all
that a replay needs to start the same cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from rmqkit.errors import RmqkitError


class PlanError(RmqkitError):
    """A plan that cannot run. The message is one line."""

    exit_code = 2


class ReplicationMode(StrEnum):
    """How many have a message when its send is answered SEND_OK."""

    ASYNC = "async"  # the master
    SYNC = "sync"  # SYNC_MASTER plain: inSyncReplicas of them
    QUORUM = "quorum"  # SYNC_MASTER with totalReplicas > 1: as many, refused when too few are in sync


class Flush(StrEnum):
    """Where a message is when its send is answered SEND_OK."""

    ASYNC = "async-flush"  # in the page cache
    SYNC = "sync-flush"  # on disk
    POOL = "pool"  # in the broker's memory (transientStorePoolEnable)


@dataclass(frozen=True, slots=True)
class Mode:
    replication: ReplicationMode = ReplicationMode.QUORUM
    flush: Flush = Flush.ASYNC

    def __str__(self) -> str:
        return f"{self.replication}+{self.flush}"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """`quorum`, `async`, `sync`, each also with `+async-flush`, `+sync-flush` or `+pool`.

        Raises PlanError.
        """
        replication, _, flush = text.partition("+")
        try:
            return cls(ReplicationMode(replication), Flush(flush or Flush.ASYNC))
        except ValueError:
            known = f"{', '.join(ReplicationMode)}; and after a + {', '.join(Flush)}"
            raise PlanError(f"mode {text!r}: there are {known}") from None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Mode:
        """The mode of a master with these settings (RocketMQ's names, values as text; absent ones:
        Apache's defaults)."""
        if settings.get("brokerRole", "ASYNC_MASTER") != "SYNC_MASTER":
            replication = ReplicationMode.ASYNC
        elif int(settings.get("totalReplicas", "1")) > 1 or _true(settings, "enableSlaveActingMaster"):
            replication = ReplicationMode.QUORUM
        else:
            replication = ReplicationMode.SYNC
        if settings.get("flushDiskType") == "SYNC_FLUSH":
            return cls(replication, Flush.SYNC)
        return cls(replication, Flush.POOL if _true(settings, "transientStorePoolEnable") else Flush.ASYNC)

    def settings(self, replicas: int) -> dict[str, str]:
        """The settings of the brokers of a group with so many replicas."""
        copies = str(min(2, replicas))
        pool = "true" if self.flush is Flush.POOL else "false"
        chosen = {
            "flushDiskType": "SYNC_FLUSH" if self.flush is Flush.SYNC else "ASYNC_FLUSH",
            "transientStorePoolEnable": pool,
        }
        if self.replication is ReplicationMode.ASYNC:
            return {**chosen, "brokerRole": "ASYNC_MASTER"}
        if self.replication is ReplicationMode.SYNC:
            plain = {"totalReplicas": "1", "enableSlaveActingMaster": "false", "enableAutoInSyncReplicas": "false"}
            return {**chosen, "brokerRole": "SYNC_MASTER", "inSyncReplicas": copies, **plain}
        return {**chosen, "brokerRole": "SYNC_MASTER", "inSyncReplicas": copies, "totalReplicas": str(replicas)}


#: settings of a master that define what its answers mean, and how long an answer may take
SEEN = (
    "brokerRole",
    "flushDiskType",
    "transientStorePoolEnable",
    "totalReplicas",
    "inSyncReplicas",
    "minInSyncReplicas",
    "enableAutoInSyncReplicas",
    "enableSlaveActingMaster",
    "slaveReadEnable",
    "slaveTimeout",
    "syncFlushTimeout",
    "flushConsumerOffsetInterval",
    "flushIntervalCommitLog",
    "commitIntervalCommitLog",
    "brokerNotActiveTimeoutMillis",
    "syncBrokerMemberGroupPeriod",
    "lockMode",
    "lockInStrictMode",
    "escapeStrategy",
    "enableRemoteEscape",
    "messageDelayLevel",
    "flushDelayOffsetInterval",
)
#: Apache's defaults that checkers need
NOT_ACTIVE_MS = 10_000
MEMBER_SYNC_MS = 1_000
#: how long faults last
LASTS_MS = 6_000


def _true(settings: Mapping[str, str], key: str) -> bool:
    return str(settings.get(key, "false")).lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """See the head of this module. Times are in milliseconds."""

    fault: str = "kill"
    #: which node the fault hits, as a selector within the group: master, slave, broker-a:1
    target: str = "master"
    #: the broker group that is broken; "" is the first
    group: str = ""
    seed: int = 1
    mode: Mode = field(default_factory=Mode)
    groups: int = 1
    replicas: int = 1
    nameservers: int = 1
    #: which brokers share a process (`rmqkit.cluster.layout.description.LAYOUTS`)
    layout: str = "apart"
    #: settings of the nodes beyond those of the mode and of `cluster up`
    settings: Mapping[str, str] = field(default_factory=dict)
    #: what the running master reported of its settings (`SEEN`); checkers take limits from them
    seen: Mapping[str, str] = field(default_factory=dict)
    #: defects to plant on purpose (`rmqkit.drill.defects.table`): the drill has to find them
    breaks: tuple[str, ...] = ()
    #: promises to check; () is every one that applies
    promises: tuple[str, ...] = ()

    writers: int = 4
    #: messages a second of one writer
    rate: int = 40
    queues: int = 4
    body_size: int = 200
    send_timeout_ms: int = 3000
    #: delayed messages per second, where slaves act for their masters
    delay_rate: int = 20

    #: how long the steady state may take, and how long it is observed before the fault
    steady_max_ms: int = 15_000
    before_ms: int = 2_000
    #: how long a fault may take until its proof, and how long it lasts (0: `LASTS_MS`, or until a
    #: slave has acted)
    bite_max_ms: int = 5_000
    fault_ms: int = 6_000
    #: how much longer the fault lasts at most, until the acting slave has granted a lock and
    #: released a delayed message: a busy machine may need the time
    hold_ms: int = 0
    #: how long after its end everything must work again
    recover_max_ms: int = 30_000
    settle_ms: int = 1_500
    drain_max_ms: int = 15_000

    def checked(self) -> Plan:
        """Itself. Raises PlanError."""
        for name in ("groups", "replicas", "nameservers", "writers", "rate", "queues", "body_size", "send_timeout_ms"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} = {getattr(self, name)}: must be at least 1")
        for item in fields(self):
            if item.name.endswith("_ms") and getattr(self, item.name) < 0:
                raise PlanError(f"{item.name} = {getattr(self, item.name)}: must not be negative")
        return self

    def changed(self, **given: Any) -> Plan:
        """A copy with the values that are not None."""
        return replace(self, **{key: value for key, value in given.items() if value is not None}).checked()

    def setting(self, key: str, default: int) -> int:
        """A number among the settings: as the master reported it, else as asked for."""
        text = str(self.seen.get(key, self.settings.get(key, default)))
        return int(text) if text.lstrip("-").isdigit() else default

    def word(self, key: str, default: str = "") -> str:
        """A text among the settings."""
        return str(self.seen.get(key, self.settings.get(key, default)))

    @property
    def acting(self) -> bool:
        """Whether a slave acts for its master when that is gone."""
        return self.replicas > 1 and self.word("enableSlaveActingMaster").lower() == "true"

    @property
    def strict_locks(self) -> bool:
        """Whether a quorum of the group grants queue locks.

        Of plug-ins, only `fencing` is known to do so.
        """
        named = self.word("lockMode")
        return "strict" in named or named == "fencing" or self.word("lockInStrictMode").lower() == "true"

    @property
    def escapes(self) -> bool:
        """Whether an acting master puts delayed messages on a master of another group."""
        strategy = self.word("escapeStrategy")
        if strategy:
            return self.groups > 1 and strategy not in ("none", "local")
        return self.groups > 1 and self.word("enableRemoteEscape").lower() == "true"

    @property
    def not_active_ms(self) -> int:
        """After so long without a heartbeat a name server removes a broker."""
        return self.setting("brokerNotActiveTimeoutMillis", NOT_ACTIVE_MS)

    @property
    def member_sync_ms(self) -> int:
        """How often a broker asks which members of its group are alive."""
        return self.setting("syncBrokerMemberGroupPeriod", MEMBER_SYNC_MS)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "mode": str(self.mode), "settings": dict(self.settings), "seen": dict(self.seen)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Raises PlanError for an unknown key or a wrong value."""
        known = {item.name for item in fields(cls)}
        strange = [key for key in content if key not in known]
        if strange:
            raise PlanError(f"a plan has no {strange[0]!r}")
        given = dict(content)
        if "mode" in given:
            given["mode"] = Mode.parse(str(given["mode"]))
        for name in ("breaks", "promises"):
            if name in given:
                given[name] = tuple(given[name])
        try:
            return cls(**given).checked()
        except TypeError as error:
            raise PlanError(f"no plan: {error}") from None

    def dumps(self) -> str:
        return json.dumps(self.as_json(), indent=2) + "\n"
