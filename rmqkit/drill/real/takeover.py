"""The load for takeovers, on real processes: the work that an acting slave has to take over.

This is: delayed messages that are pending, locks that are held, and a group that begins to consume
in order while the master is gone. It is part of `RealLoad`, and runs if a slave may act for its
master. Lockers ask the broker that the current route names as master, as a client would that has
just learned it. Each locker keeps its connections until they break.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from rmqkit.api import Producer, PushConsumer
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.drill import workload
from rmqkit.drill.real.client_threads import ClientThreads, Pace
from rmqkit.drill.real.peers import Peers
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from rmqkit.drill.real.load import RealLoad

COMMIT_MS = 500
RETRY_S = 0.1


class TakeoverLoad:
    """`nodes` maps addresses to node names; `nameserver` is asked for routes."""

    def __init__(self, load: "RealLoad", *, nameserver: Address, nodes: Mapping[str, str]) -> None:
        self._load = load
        self._nameserver = nameserver
        self._nodes = nodes
        self._threads = ClientThreads()
        self._ordered: PushConsumer | None = None
        self._wall_ms = time.time() * 1000 - load.now_ms()
        #: when a locker was last granted a lock; 0 before
        self.locked_ms = 0

    def start(self) -> None:
        threads = self._threads
        threads.begin()
        threads.read(workload.DELAYED, self._read_delayed)
        threads.write(workload.DELAYER, self._write)
        for number in range(workload.LOCKERS):
            threads.write(workload.locker_name(number), partial(self._compete, number))

    def stop_sending(self, join_s: float) -> None:
        self._threads.stop_sending(join_s)

    def close(self, join_s: float) -> None:
        self._threads.stop_sending(join_s)
        self._threads.reading.clear()
        if self._ordered is not None:
            with suppress(RmqkitError):
                self._ordered.close()
        self._threads.close(join_s)

    # --- a group that joins after the proof of the fault, and consumes in order

    def join_ordered(self) -> None:
        """Start the group `ordered`, and retry until it is started."""
        load = self._load
        load.given[workload.ORDERED] = {}
        consumer = PushConsumer(
            load.group(workload.ORDERED),
            namesrv=load.namesrv,
            instance_name=f"{load.name}-o",
            orderly=True,
            consume_from="first",
            persist_interval_ms=COMMIT_MS,
        )
        self._ordered = consumer
        consumer.subscribe(load.name)

        def listen(message: MessageExt) -> None:
            load.delivered(workload.ORDERED, f"{workload.ORDERED}-0", message)

        def start() -> None:
            while self._threads.reading.is_set():
                try:
                    consumer.start(listen)
                    return
                except ClientError:
                    time.sleep(RETRY_S)

        self._threads.read(workload.ORDERED, start)

    # --- delayed messages

    def _write(self) -> None:
        load = self._load
        producer = Producer(
            f"{load.name}-writers",
            namesrv=load.namesrv,
            instance_name=f"{load.name}-delayer",
            send_msg_timeout_ms=load.plan.send_timeout_ms,
        )
        levels = workload.levels_ms(load.plan)
        pace = Pace()
        try:
            for order in workload.delay_script(load.plan):
                pace.wait(order.pause_ms)
                if not self._threads.sending.is_set():
                    return
                queue = MessageQueue(load.delayed_topic, load.broker, order.queue)
                message = Message(load.delayed_topic, order.body, keys=order.key, delay_level=order.level)
                invoke_ms = load.now_ms()
                try:
                    outcome: SendResult | ClientError = producer.send(message, queue)
                except ClientError as error:
                    outcome = error
                load.delay_sent(order, levels[order.level], invoke_ms, outcome)
        finally:
            producer.close()

    def _read_delayed(self) -> None:
        load = self._load

        def given(message: MessageExt) -> None:
            load.due(f"{workload.DELAYED}-0", message, round(message.store_timestamp_ms - self._wall_ms))

        load.read(workload.DELAYED, load.delayed_topic, self._threads.reading, given)

    # --- locks

    def _compete(self, number: int) -> None:
        load = self._load
        name = workload.locker_name(number)
        peers = Peers(self._nameserver)
        held: dict[int, int] = {}  # queue → when its lock is to be released
        try:
            for order in workload.lock_script(load.plan, number):
                time.sleep(order.pause_ms / 1000)
                if not self._threads.sending.is_set():
                    return
                self._step(name, order, peers, held)
        finally:
            peers.close()

    def _step(self, name: str, order: workload.LockOrder, peers: Peers, held: dict[int, int]) -> None:
        """Release the locks that were held long enough, and ask for those not held."""
        load = self._load
        address = peers.master_of(load.name, load.broker)
        if not address:
            return
        node = self._nodes.get(address, address)
        client_id = f"{load.name}-{name}"
        group = load.group(workload.LOCK)
        now_ms = load.now_ms()
        over = [queue for queue, until_ms in held.items() if until_ms <= now_ms]
        if over:
            done = peers.ask(address, lambda asked: asked.unlock(group, client_id, self._queues(over)))
            load.locks_returned(name, node, over, now_ms, answered=done is not None)
            for queue in over:
                del held[queue]
        wanted = [queue for queue in order.queues if queue not in held]
        if not wanted:
            return
        invoke_ms = load.now_ms()
        granted = peers.ask(address, lambda asked: asked.lock(group, client_id, self._queues(wanted)))
        load.locks_asked(name, node, wanted, granted, invoke_ms, peers.error)
        if granted:
            self.locked_ms = load.now_ms()
            held.update(dict.fromkeys(sorted(granted), invoke_ms + order.hold_ms))

    def _queues(self, queues: list[int]) -> list[MessageQueue]:
        return [MessageQueue(self._load.name, self._load.broker, queue) for queue in queues]
