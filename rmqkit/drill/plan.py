"""A plan: everything that defines a drill. It runs on real processes and in the simulator.

A **mode** is the meaning of an acknowledgement: which replicas have the message
(`ReplicationMode`), and whether it is on disk (`Flush`). The mode follows from the settings of a
master (`Mode.of`). Conversely, a text such as `quorum` or `sync+sync-flush` selects the settings
(`Mode.parse`, `Mode.settings`).

All randomness comes from the seed: when each writer sends which message to which queue
(`workload.script`), and the random choices of a fault. A run stores its plan as `plan.json`, and a
replay runs that plan again. So a recorded plan also has the settings that the master reported
(`Plan.seen`), and everything else that a replay needs to start the same cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from rmqkit.errors import RmqkitError


class PlanError(RmqkitError):
    """The plan cannot run. The message is one line."""

    exit_code = 2


class ReplicationMode(StrEnum):
    """How many replicas have a message when its send is answered SEND_OK."""

    ASYNC = "async"  # only the master
    SYNC = "sync"  # plain SYNC_MASTER: inSyncReplicas replicas
    QUORUM = "quorum"  # SYNC_MASTER with totalReplicas > 1: as SYNC; sends are refused if too few are in sync
    ALL_ACK = "all-ack"  # controllers elect the master, allAckInSyncStateSet: all members in sync
    SOME_ACK = "some-ack"  # controllers elect the master: inSyncReplicas of the members in sync


#: modes without controllers, and modes in which controllers elect the master
PLAIN = (ReplicationMode.ASYNC, ReplicationMode.SYNC, ReplicationMode.QUORUM)
ELECTED = (ReplicationMode.ALL_ACK, ReplicationMode.SOME_ACK)
#: controllers and replicas of a drill in such a mode
CONTROLLERS = 3


class Flush(StrEnum):
    """Where a message is when its send is answered SEND_OK."""

    ASYNC = "async-flush"  # in the page cache
    SYNC = "sync-flush"  # on disk
    POOL = "pool"  # in the broker's memory (transientStorePoolEnable)


@dataclass(frozen=True, slots=True)
class Mode:
    """The meaning of SEND_OK; see the head of this module."""

    replication: ReplicationMode = ReplicationMode.QUORUM
    flush: Flush = Flush.ASYNC

    def __str__(self) -> str:
        return f"{self.replication}+{self.flush}"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Parse a mode, for instance `quorum` or `sync+sync-flush`. Raises PlanError."""
        replication, _, flush = text.partition("+")
        try:
            made = cls(ReplicationMode(replication), Flush(flush or Flush.ASYNC))
            if made.replication in ELECTED and made.flush is Flush.POOL:
                raise PlanError(f"mode {text!r}: a slave that becomes master needs its log in files")
            return made
        except ValueError:
            known = f"{', '.join(ReplicationMode)}, optionally followed by + and one of {', '.join(Flush)}"
            raise PlanError(f"mode {text!r} is unknown: use one of {known}") from None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Mode:
        """Return the mode of a master with these settings.

        Keys are RocketMQ's names, values are texts. A missing key means Apache's default.
        """
        if _true(settings, "enableControllerMode"):
            all_ack = _true(settings, "allAckInSyncStateSet")
            replication = ReplicationMode.ALL_ACK if all_ack else ReplicationMode.SOME_ACK
        elif settings.get("brokerRole", "ASYNC_MASTER") != "SYNC_MASTER":
            replication = ReplicationMode.ASYNC
        elif int(settings.get("totalReplicas", "1")) > 1 or _true(settings, "enableSlaveActingMaster"):
            replication = ReplicationMode.QUORUM
        else:
            replication = ReplicationMode.SYNC
        if settings.get("flushDiskType") == "SYNC_FLUSH":
            return cls(replication, Flush.SYNC)
        return cls(replication, Flush.POOL if _true(settings, "transientStorePoolEnable") else Flush.ASYNC)

    def settings(self, replicas: int) -> dict[str, str]:
        """Return the broker settings that select this mode in a group with that many replicas."""
        copies = str(min(2, replicas))
        pool = "true" if self.flush is Flush.POOL else "false"
        chosen = {
            "flushDiskType": "SYNC_FLUSH" if self.flush is Flush.SYNC else "ASYNC_FLUSH",
            "transientStorePoolEnable": pool,
        }
        if self.replication in ELECTED:
            all_ack = "true" if self.replication is ReplicationMode.ALL_ACK else "false"
            own = {"enableControllerMode": "true", "allAckInSyncStateSet": all_ack}
            return {**chosen, "brokerRole": "SYNC_MASTER", "inSyncReplicas": copies, **own}
        if self.replication is ReplicationMode.ASYNC:
            return {**chosen, "brokerRole": "ASYNC_MASTER"}
        if self.replication is ReplicationMode.SYNC:
            plain = {"totalReplicas": "1", "enableSlaveActingMaster": "false", "enableAutoInSyncReplicas": "false"}
            return {**chosen, "brokerRole": "SYNC_MASTER", "inSyncReplicas": copies, **plain}
        return {**chosen, "brokerRole": "SYNC_MASTER", "inSyncReplicas": copies, "totalReplicas": str(replicas)}


#: settings of a master that define the meaning of its answers, or the time limits of checkers
SEEN = (
    "brokerRole",
    "flushDiskType",
    "transientStorePoolEnable",
    "totalReplicas",
    "inSyncReplicas",
    "minInSyncReplicas",
    "enableAutoInSyncReplicas",
    "enableSlaveActingMaster",
    "enableControllerMode",
    "allAckInSyncStateSet",
    "controllerHeartBeatTimeoutMills",
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
    "transactionTimeOut",
    "timerFlushIntervalMs",
    "timerPrecisionMs",
    "transactionCheckMax",
    "transactionCheckInterval",
    "recallMessageEnable",
    "timerWheelEnable",
    "rejectTransactionMessage",
)
#: Apache's defaults for settings that checkers need, in ms
NOT_ACTIVE_MS = 10_000
HEARTBEAT_TIMEOUT_MS = 10_000
MEMBER_SYNC_MS = 1_000
#: how long a fault lasts by default
LASTS_MS = 6_000
#: loads that a plan may add (`Plan.services`)
TIMERS, TRANSACTIONS, POP = "timers", "transactions", "pop"
SERVICES = (TIMERS, TRANSACTIONS, POP)
#: fields that must be at least 1
COUNTS = (
    "groups",
    "replicas",
    "nameservers",
    "writers",
    "rate",
    "queues",
    "body_size",
    "send_timeout_ms",
    "timer_rate",
    "transaction_rate",
)


def _true(settings: Mapping[str, str], key: str) -> bool:
    return str(settings.get(key, "false")).lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One drill. Times are in milliseconds."""

    fault: str = "kill"
    #: which node the fault hits, as a selector within the group: master, slave, broker-a:1
    target: str = "master"
    #: the broker group that the fault hits; "" is the first
    group: str = ""
    seed: int = 1
    mode: Mode = field(default_factory=Mode)
    groups: int = 1
    replicas: int = 1
    nameservers: int = 1
    #: above 0: controllers elect the master of each group
    controllers: int = 0
    #: which brokers share a process (`rmqkit.cluster.layout.description.LAYOUTS`)
    layout: str = "apart"
    #: whether the cluster has TLS and users (`cluster up --preset secure`)
    secure: bool = False
    #: settings of the nodes, in addition to those of the mode and of `cluster up`
    settings: Mapping[str, str] = field(default_factory=dict)
    #: settings that the running master reported (`SEEN`); checkers use them as limits
    seen: Mapping[str, str] = field(default_factory=dict)
    #: defects to plant on purpose (`rmqkit.drill.defects.table`); the drill must find them
    breaks: tuple[str, ...] = ()
    #: promises to check; () means all that apply
    promises: tuple[str, ...] = ()

    writers: int = 4
    #: messages per second of one writer
    rate: int = 40
    queues: int = 4
    body_size: int = 200
    send_timeout_ms: int = 3000
    #: delayed messages per second, where slaves act for their masters
    delay_rate: int = 20
    #: loads in addition to plain messages: some of `SERVICES`
    services: tuple[str, ...] = ()
    #: timers and transactions per second, if they are among the services
    timer_rate: int = 10
    transaction_rate: int = 10

    #: limit for reaching the steady state
    steady_max_ms: int = 15_000
    #: how long the steady state is observed before the fault begins
    before_ms: int = 2_000
    #: limit for the proof of the fault, from its start
    bite_max_ms: int = 5_000
    #: how long the fault lasts; 0 on real processes: `LASTS_MS`, or long enough for a slave to act
    fault_ms: int = 6_000
    #: how much longer the fault may last until the acting slave has granted a lock and released a
    #: delayed message; a busy machine may need the time
    hold_ms: int = 0
    #: limit for the recovery, from the end of the fault
    recover_max_ms: int = 30_000
    #: how long the load continues after the recovery
    settle_ms: int = 1_500
    #: limit for the groups to receive all messages once the writers have stopped
    drain_max_ms: int = 15_000

    def checked(self) -> Plan:
        """Return the plan itself. Raises PlanError if a value is out of range."""
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise PlanError(f"{name} = {getattr(self, name)}: must be at least 1")
        for service in self.services:
            if service not in SERVICES:
                raise PlanError(f"load {service!r} is unknown: use some of {', '.join(SERVICES)}")
        for item in fields(self):
            if item.name.endswith("_ms") and getattr(self, item.name) < 0:
                raise PlanError(f"{item.name} = {getattr(self, item.name)}: must not be negative")
        return self

    def changed(self, **given: Any) -> Plan:
        """Return a copy with those given values that are not None. Raises PlanError."""
        return replace(self, **{key: value for key, value in given.items() if value is not None}).checked()

    def setting(self, key: str, default: int) -> int:
        """Return a setting as a number: the reported value, else the requested one."""
        text = str(self.seen.get(key, self.settings.get(key, default)))
        return int(text) if text.lstrip("-").isdigit() else default

    def word(self, key: str, default: str = "") -> str:
        """Return a setting as text: the reported value, else the requested one."""
        return str(self.seen.get(key, self.settings.get(key, default)))

    @property
    def acting(self) -> bool:
        """Whether a slave acts for its master while the master is gone."""
        return self.replicas > 1 and self.word("enableSlaveActingMaster").lower() == "true"

    @property
    def elected(self) -> bool:
        """Whether controllers elect another master if the master is gone."""
        return self.mode.replication in ELECTED

    @property
    def strict_locks(self) -> bool:
        """Whether a quorum of the group grants queue locks.

        The only lock mode of a plug-in that is known to do so is `fencing`.
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
        """The time without a heartbeat after which a name server removes a broker."""
        return self.setting("brokerNotActiveTimeoutMillis", NOT_ACTIVE_MS)

    @property
    def heartbeat_timeout_ms(self) -> int:
        """The time without a heartbeat after which controllers elect another master."""
        return self.setting("controllerHeartBeatTimeoutMills", HEARTBEAT_TIMEOUT_MS)

    @property
    def member_sync_ms(self) -> int:
        """The interval at which a broker asks which members of its group are alive."""
        return self.setting("syncBrokerMemberGroupPeriod", MEMBER_SYNC_MS)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "mode": str(self.mode), "settings": dict(self.settings), "seen": dict(self.seen)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Read a plan. Raises PlanError for an unknown key or an invalid value."""
        known = {item.name for item in fields(cls)}
        strange = [key for key in content if key not in known]
        if strange:
            raise PlanError(f"a plan has no field {strange[0]!r}")
        given = dict(content)
        if "mode" in given:
            given["mode"] = Mode.parse(str(given["mode"]))
        for name in ("breaks", "promises", "services"):
            if name in given:
                given[name] = tuple(given[name])
        try:
            return cls(**given).checked()
        except TypeError as error:
            raise PlanError(f"invalid plan: {error}") from None

    def dumps(self) -> str:
        return json.dumps(self.as_json(), indent=2) + "\n"
