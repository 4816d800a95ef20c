"""The driver of drills on a simulated cluster: virtual time, one thread, a seed for everything.

A real drill queries nodes over the wire. This driver instead reads the state of the broker objects,
which adds no events to the simulation: their replication states, the groups' offsets, the last
reading, the logs. Clients do use the simulated network.

In addition to the driver contract, a simulated node can lose its power (`power_cut`) and its disk
(`lose_disk`). Seeds may also draw slow links and a rogue replica on the HA port (`Extras`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from rmqkit.broker.node import Broker
from rmqkit.drill import workload
from rmqkit.drill.contract import DrillError, DrillNode
from rmqkit.drill.defects import table
from rmqkit.drill.history import FAIL, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.delays import CLOCK_JUMPS
from rmqkit.drill.real.node_client import key_of
from rmqkit.drill.sim.load import SimLoad
from rmqkit.drill.sim.rogue_replica import Stranger
from rmqkit.drill.workload import checksum
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import HA_PORT, SimCluster
from rmqkit.sim.net import NetProfile
from rmqkit.sim.process import TurnTimes
from rmqkit.sim.world import World
from rmqkit.wire.record import Blank, Record, decode_record, iter_records

if TYPE_CHECKING:
    from rmqkit.tls.node_tls import NodeTls

STEP_MS = 50
#: in a steady state, sends and deliveries are not older than this
FRESH_MS = 1_000
#: limit for replicas to agree on the groups' offsets once nothing changes any more
AGREE_MS = 3_000
#: time for the last answers to arrive. Where messages can be read only later, the engine has waited
QUIET_MS = 100
PIECE_SIZE = 4096
TOPIC = "drill"
#: tags of the links between master and slaves, in rules of `isolate`
HA_TAGS = ("ha", "ha-master")
#: states of a slave that has stopped following its master, until an operator intervenes
HALTED = ("ahead", "foreign")


class Extras(NamedTuple):
    """What a seed draws in addition to its plan."""

    latency_us: int
    #: the rogue replica on the HA port: "" none, "echo" acknowledges everything that was sent to
    #: it, "huge" acknowledges an offset far beyond the end of the log
    stranger: str

    @classmethod
    def of(cls, plan: Plan) -> "Extras":
        chance = Random(f"{plan.seed}/extras")
        latency_us = chance.choice((60, 60, 60, 1_000, 8_000))
        return cls(latency_us, chance.choice(("", "", "echo", "huge")) if plan.replicas > 1 else "")


class SimDriver:
    """The `rmqkit.drill.contract.Driver` of a simulated cluster."""

    #: the client to which a node must be reachable to count as one that answers
    observer = "pull-0"
    #: how often the states of the brokers are recorded
    look_ms = 100
    #: how long turns take
    turns = TurnTimes()
    #: how often data that is sent at once arrives in pieces
    cut_chance = NetProfile().cut_chance

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.history = History()
        self.extras = self._drawn(plan)
        profile = NetProfile(latency_us=self.extras.latency_us, cut_chance=self.cut_chance)
        self.world = World(plan.seed, profile=profile, turns=self.turns, keep_trace=keep_trace)
        settings = {**plan.mode.settings(plan.replicas), **plan.settings}
        role = {} if plan.replicas > 1 else {"haAcceptAnonymous": "true"}
        self.cluster = self._made_cluster({**role, **settings})
        self._broker = plan.group or "broker-a"
        self._load: Any = self._made_load()
        self._cuts: dict[str, list[tuple[str, str]]] = {}
        #: node → (time of a clock change, total offset of the clock since then), in ms
        self._jumps: dict[str, list[tuple[int, int]]] = {}
        #: node → how many disks it has lost
        self._disks: dict[str, int] = {}
        #: groups whose offsets are recorded
        self._groups = [self._load.group(kind) for kind in (workload.PULL, workload.PUSH, workload.LATE)]
        self._is_watching = False
        self._last: dict[str, HistoryRow] = {}
        #: (node, group, queue) → the (offset, boot) recorded last
        self._held: dict[tuple[str, str, int], tuple[int, str]] = {}
        #: (node, group) → (boot, offsets by queue) at the last poll
        self._polled: dict[tuple[str, str], tuple[str, dict[int, int]]] = {}
        #: (node, group, queue) whose offset a group member or a truncation has lowered since then
        self._lowered: set[tuple[str, str, int]] = set()

    def _drawn(self, plan: Plan) -> Any:
        return Extras.of(plan)

    def _made_cluster(self, settings: Mapping[str, Any]) -> SimCluster:
        plan = self.plan
        return SimCluster(
            self.world,
            groups=plan.groups,
            replicas=plan.replicas,
            settings=settings,
            prepared=self._prepared,
            secure=plan.secure,
            tls=self._tls(),
        )

    def _tls(self) -> "Callable[[str], NodeTls] | None":
        """Return what makes the TLS of a node, None for plain text."""
        if not self.plan.secure:
            return None
        from rmqkit.drill.simulation_tls import tls_of  # loads `ssl`

        return tls_of

    def _made_load(self) -> SimLoad:
        return SimLoad(self.cluster, self.plan, self.history, self.now_ms, name=TOPIC, broker=self._broker)

    def _prepared(self, broker: Broker) -> None:
        commit = broker.offsets.commit

        def noted(group: str, topic: str, queue_id: int, offset: int) -> bool:
            if offset < broker.offsets.query(group, topic, queue_id):
                self._lowered.add((broker.name, group, queue_id))
            return commit(group, topic, queue_id, offset)

        broker.offsets.commit = noted  # type: ignore[method-assign]  # watched for the history
        cut = broker.offsets.cut

        def cut_noted(end: Callable[[str, int], int]) -> None:
            """Note the offsets that a truncation of the log lowers: their messages are gone."""
            before = {place: offset for place, (offset, _) in self._held.items() if place[0] == broker.name}
            cut(end)
            for name, group, queue in before:
                if broker.offsets.query(group, TOPIC, queue) < before[name, group, queue]:
                    self._lowered.add((name, group, queue))

        broker.offsets.cut = cut_noted  # type: ignore[method-assign]  # watched for the history
        if self.plan.breaks:
            table.plant(broker, self.plan.breaks)

    # --- time

    def now_ms(self) -> int:
        return self.world.now_ms

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        end_ms = self.now_ms() + most_ms
        while until is None or not until():
            left_ms = end_ms - self.now_ms()
            if left_ms <= 0:
                return until is None
            self.world.run_for(min(STEP_MS, left_ms))
        return True

    def later(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Call a function after `delay_ms`. Series of faults use it during a wait."""
        self.world.after_ms(delay_ms, function)

    # --- the course

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        return [node for node in self.all_nodes() if selector in (node.name, node.role, f"{node.broker}:{node.broker_id}")]

    def all_nodes(self) -> list[DrillNode]:
        """Return the brokers."""
        split = [name.rpartition("-") for name in self.cluster.brokers]
        return [DrillNode(f"{broker}-{number}", broker, int(number)) for broker, _, number in split]

    def facts(self) -> Mapping[str, Any]:
        return {"replication": self.cluster.replication(), "extras": self.extras._asdict()}

    def begin_load(self) -> None:
        if not self.wait(self.plan.steady_max_ms, lambda: self._is_up() and self.cluster.has_users()):
            raise DrillError(f"the cluster does not come up: {self.cluster.replication()}")
        self._load.start()
        if not self.wait(self.plan.steady_max_ms, lambda: self._load.has_topic):
            raise DrillError("the drill's topic cannot be created")
        self._load.begin()
        if self.extras.stranger:
            self._add_stranger()
        self._is_watching = True
        self._watch()

    def _is_up(self) -> bool:
        return self.cluster.is_in_sync() and all(
            self.cluster.broker(name).registration.registered for name in self.cluster.brokers
        )

    def _add_stranger(self) -> None:
        master = self.world.process(self.cluster.masters[0])
        peer = Address(master.host, HA_PORT)
        is_huge = self.extras.stranger == "huge"
        self.cluster.add_node("stranger", lambda ports: Stranger("stranger", ports, peer, is_huge=is_huge), "10.0.9.9")

    def lacking(self) -> str:
        # What was acknowledged before the end of the fault shows no recovery from it.
        since_ms = max(self.now_ms() - FRESH_MS, self._load.healed_ms)
        halted = self._halted()
        # A slave that is ahead does not follow its master again by itself. If the quorum then
        # refuses puts, the cluster is as steady as it can be, so do not wait for sends.
        if not halted or self._takes_puts():
            for number in range(self.plan.writers):
                name = workload.writer_name(number)
                if self._load.acked_ms.get(name, -FRESH_MS) < since_ms:
                    return f"no send of {name} was acknowledged"
            for kind in self._load.readers:
                if self._load.given_ms.get(kind, -FRESH_MS) < since_ms:
                    return f"group {self._load.group(kind)} received no message"
        for name in self.cluster.brokers:
            if not self.world.is_alive(name) or not self.cluster.broker(name).serving:
                return f"{name} does not serve"
        for master in self.cluster.masters:
            wanted = self.plan.replicas - sum(slave in halted for slave in self.cluster.slaves_of(master))
            count = self.cluster.in_sync_count(master)
            if count < wanted:
                return f"{master} has {count} of {wanted} replicas in sync"
        return ""

    def _halted(self) -> list[str]:
        return [name for name in self.cluster.brokers if self._state(name) in HALTED]

    def _state(self, name: str) -> str:
        return self.cluster.broker(name).replication.state if self.world.is_alive(name) else ""

    def _takes_puts(self) -> bool:
        return not any(
            self.cluster.broker(name).replication.acks.too_few for name in self.cluster.masters if self.world.is_alive(name)
        )

    def stop_sending(self) -> None:
        self._load.sending = False
        self.wait(self.plan.send_timeout_ms + 1_000, lambda: not self._load.under_way)

    def caught_up(self) -> bool:
        ends = {}
        for name in self.cluster.masters:
            if not self._serves(name):
                return False
            for queue in range(self.plan.queues):
                ends[name.rpartition("-")[0], queue] = self.cluster.broker(name).store.queue_range(TOPIC, queue).offset_max
        return all(table.get(place, 0) >= end for table in self._load.given.values() for place, end in ends.items())

    def _serves(self, name: str) -> bool:
        return self.world.is_alive(name) and bool(self.cluster.broker(name).serving)

    def read_all(self) -> None:
        self.wait(QUIET_MS)
        self.wait(AGREE_MS, self._agree)
        self._is_watching = False
        self._load.reading = False
        for name in self.cluster.brokers:
            self._record_state(name, final=True)
        for name in self.cluster.brokers:
            for queue in self._queues(name):
                self._read_queue(name, queue)
            self._read_diverged(name)
        for master in self.cluster.masters:
            self._read_logs(master)

    def close(self) -> None:
        self._is_watching = False
        self._load.sending = self._load.reading = False

    # --- what faults do

    def kill(self, node: DrillNode) -> None:
        if self.world.is_alive(node.name):
            self.world.kill(node.name)

    def start(self, node: DrillNode) -> None:
        self.begin(node)
        if not self.wait(self.plan.recover_max_ms, lambda: self._serves(node.name)):
            raise DrillError(f"{node.name} does not serve {self.plan.recover_max_ms} ms after its start")

    def begin(self, node: DrillNode) -> None:
        """Start a node without waiting until it serves."""
        if not self.world.is_alive(node.name):
            self.world.restart(node.name)

    def pause(self, node: DrillNode) -> None:
        self.world.pause(node.name)

    def resume(self, node: DrillNode) -> None:
        self.world.resume(node.name)

    def power_cut(self, node: DrillNode) -> None:
        if self.world.is_alive(node.name):
            self.world.crash(node.name)

    def stop(self, node: DrillNode) -> None:
        """Stop the process cleanly, as SIGTERM does."""
        if self.world.is_alive(node.name):
            self.world.stop(node.name)

    def jump_clock(self, node: DrillNode, jump_ms: int) -> None:
        """Set the clock of the node's machine forward or back."""
        known = self._jumps.setdefault(node.name, [(0, 0)])
        known.append((self.now_ms(), known[-1][1] + jump_ms))
        self.world.jump_wall(node.name, jump_ms)
        self.history.add(
            "event", key=CLOCK_JUMPS, value=f"{node.name} {jump_ms} ms", invoke_ms=self.now_ms(), jump_ms=jump_ms
        )

    def world_ms(self, name: str, wall_ms: int) -> int:
        """Return the virtual time at which the clock of a node's machine last showed `wall_ms`."""
        until_ms = self.now_ms()
        for since_ms, skew_ms in reversed(self._jumps.get(name, [(0, 0)])):
            at_ms = wall_ms - self.world.wall_start_ms - skew_ms
            if since_ms <= at_ms <= until_ms:
                return at_ms
            until_ms = since_ms
        return wall_ms - self.world.wall_start_ms

    def lose_disk(self, node: DrillNode) -> None:
        if self.world.is_alive(node.name):
            self.world.lose_disk(node.name)
            self._disks[node.name] = self._disks.get(node.name, 0) + 1

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        """Apply rules as the transport of a real node does; `peer` is the name of a node.

        A rule by tag cuts all traffic with the other members of the group.
        """
        for source, target in self._cuts.pop(node.name, []):
            if not any((source, target) in cuts for cuts in self._cuts.values()):
                self.world.net.mend(source, target)
        for rule in rules:
            cuts = self._cuts.setdefault(node.name, [])
            for other in self._covered(node, rule):
                if rule.get("direction", "both") in ("in", "both"):
                    cuts.append((other, node.name))
                if rule.get("direction", "both") in ("out", "both"):
                    cuts.append((node.name, other))
        for source, target in self._cuts.get(node.name, []):
            self.world.net.cut(source, target)

    def _covered(self, node: DrillNode, rule: Mapping[str, Any]) -> list[str]:
        if "peer" in rule:
            return [str(rule["peer"])]
        if rule.get("tag") in HA_TAGS:
            return [each.name for each in self.all_nodes() if each.broker == node.broker and each.name != node.name]
        return [name for name in self.world.names if name != node.name]

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        process = self.world.process(node.name)
        cut = any(self.observer in edge for edge in self._cuts.get(node.name, []))
        return {
            "alive": process.is_alive,
            "pid": process.incarnation,
            "paused": process.is_paused,
            "answers": process.is_alive and not process.is_paused and not process.is_off and not cut,
            "transport": self._held_back(node.name),
        }

    def _held_back(self, name: str) -> Mapping[str, int]:
        edges = {edge for edge in self._cuts.get(name, []) if edge}
        net = self.world.net
        cut = {id(net.edge(*edge)) for edge in edges}
        held = sum(len(data or b"") for pipe in net.held if id(pipe.edge) in cut for _, data in pipe.segments)
        dials = sum(1 for dial in net.dials if dial.tries)
        return {"bytes_held": held, "dials_held": dials if edges else 0}

    # --- watching

    def _watch(self) -> None:
        if not self._is_watching:
            return
        for name in self.cluster.brokers:
            self._record_state(name)
        self.world.after_ms(self.look_ms, self._watch)

    def _record_state(self, name: str, **more: Any) -> None:
        """Record the state of a broker, and the group offsets that have changed there."""
        process = self.world.process(name)
        common: dict[str, Any] = {"client": name, "broker": name.rpartition("-")[0], "invoke_ms": self.now_ms(), **more}
        if not self._serves(name) or process.is_paused:
            self._last[name] = self.history.add("node", outcome=FAIL, error="no answer", **common)
            return
        broker, boot = self.cluster.broker(name), str(process.incarnation)
        replication = broker.replication
        told: dict[str, Any] = {
            "role": "slave" if replication.is_slave else "master",
            "state": replication.state,
            "why": replication.why if more else "",
            "in_sync": replication.in_sync_count(),
            "end": broker.store.offset_written,
            "boot": boot,
            "start": replication.follow.divergence.start_id if replication.is_slave else replication.start_id,
        }
        self._last[name] = self.history.add("node", **{**told, **self._elected(broker), **common})
        disk = self._disks.get(name, 0)
        for group in self._groups:
            table = broker.offsets.of(group, TOPIC)
            if self._polled.get((name, group)) == (boot, table) and not more:
                continue
            self._polled[name, group] = boot, dict(table)
            for queue in range(self.plan.queues):
                offset = broker.offsets.query(group, TOPIC, queue)
                place = (name, group, queue)
                known = self._held.get(place)
                if (offset >= 0 or known is not None) and (known != (offset, boot) or more):
                    self._held[place] = (offset, boot)
                    of_run: dict[str, Any] = {"boot": boot, "disk": disk, "by_member": place in self._lowered}
                    self._lowered.discard(place)
                    self.history.add("committed", key=group, queue=queue, offset=offset, **of_run, **common)

    def _elected(self, broker: Broker) -> dict[str, Any]:
        """Return what a broker reports in controller mode."""
        return {}

    def _agree(self) -> bool:
        """Return whether all replicas of each broker group hold the same group offsets."""
        for master in self.cluster.masters:
            names = [master, *self.cluster.slaves_of(master)]
            if not all(map(self._serves, names)):
                return True
            held = [
                [
                    self.cluster.broker(name).offsets.query(self._load.group(kind), TOPIC, queue)
                    for kind in (workload.PULL, workload.PUSH, workload.LATE)
                    for queue in range(self.plan.queues)
                ]
                for name in names
            ]
            if any(each != held[0] for each in held):
                return False
        return True

    # --- the last reading

    def _queues(self, name: str) -> list[int]:
        """Return the queues of the drill's topic on a broker.

        These are the queues of the plan, and those that the broker has if the topic was created
        again automatically.
        """
        known = set(range(self.plan.queues))
        if self._serves(name):
            known |= {each.queue_id for each in self.cluster.broker(name).store.queues() if each.topic == TOPIC}
        return sorted(known)

    def _read_queue(self, name: str, queue: int) -> None:
        role = "slave" if name not in self.cluster.masters else "master"
        common: dict[str, Any] = {
            "client": name,
            "broker": name.rpartition("-")[0],
            "invoke_ms": self.now_ms(),
            "queue": queue,
        }
        if not self._serves(name):
            self.history.add("end", outcome=FAIL, role=role, error="the broker is not serving", **common)
            return
        store = self.cluster.broker(name).store
        _, _, offset_min, offset_max = store.queue_range(TOPIC, queue)
        offset = offset_min
        while offset < offset_max:
            entries = store.entries(TOPIC, queue, offset, 64)
            for entry in entries:
                data = store.record(entry.phy_offset) if entry.size else None
                for record in iter_records(bytes(data)) if data else ():
                    self._add_read(record, entry.queue_offset, **common)
            offset = entries[-1].queue_offset + 1 if entries else offset_max
        self.history.add("end", outcome=OK, role=role, offset=offset_max, offset_min=offset_min, **common)

    def _add_read(self, record: Any, offset: int, **common: Any) -> None:
        self.history.add("read", key=key_of(record), value=checksum(record.body), offset=offset, **common)

    def _read_diverged(self, name: str) -> None:
        """Record the messages that a slave has truncated from its log but kept (`haTruncateAhead`).

        They are copies outside every queue.
        """
        folder = self.world.folder(name)
        where = f"{name}/diverged"
        common: dict[str, Any] = {"client": where, "broker": name.rpartition("-")[0], "invoke_ms": self.now_ms()}
        paths = sorted(path for path in folder.files if "/diverged/" in path)
        for path in paths:
            file = folder.files[path]
            for record in _records(file.read(0, file.size)):
                if record.topic == TOPIC:
                    self._add_read(record, -1, **common)
        if paths:
            self.history.add("end", role="diverged", offset=0, offset_min=0, **common)

    def _read_logs(self, master: str) -> None:
        names = [name for name in (master, *self.cluster.slaves_of(master)) if self._serves(name)]
        if len(names) < 2:
            return
        stores = {name: self.cluster.broker(name).store for name in names}
        following = [name for name in names if self._state(name) not in HALTED]
        end = min(stores[name].offset_written for name in following)
        for name in names:
            common: dict[str, Any] = {"client": name, "broker": name.rpartition("-")[0], "invoke_ms": self.now_ms()}
            role = "master" if name == master else "slave"
            for offset, data in _pieces(stores[name], min(end, stores[name].offset_written)):
                self.history.add("log", value=f"{crc32(data):08x}", offset=offset, role=role, size=len(data), **common)


def _pieces(store: Any, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of a log up to `end`.

    Pieces begin at multiples of `PIECE_SIZE`, so those of two replicas can be compared.
    """
    offset = store.offset_min
    while offset < end:
        size = min(PIECE_SIZE - offset % PIECE_SIZE, end - offset)
        data = bytes(store.read_log(offset, size))
        if not data:
            return
        yield offset, data
        offset += len(data)


def _records(data: bytes) -> Iterator[Record]:
    """Yield the records of a part of a log.

    Skip the blank ends of files, and stop at a torn record.
    """
    position = 0
    while position < len(data):
        try:
            found = decode_record(data, position, check_crc=True)
        except CorruptRecord:
            return
        if found is None:
            return
        if not isinstance(found, Blank):
            yield found
        position += found.size
