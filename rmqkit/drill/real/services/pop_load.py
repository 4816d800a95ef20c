"""Pop on real processes: two members of one group that pop, ack, forget and die.

Members are raw requests over connections of their own, to the broker that the current route names
as master of each group, as a client would send them that has just learned the route. A member that
dies closes its connections and loses what it holds. The broker keeps nothing else of a member, so
this is all that it could see of a process that ends.

A member pops the topic of the plain messages at all brokers. In one step it pops a broker until it
gets less than a whole batch, at most `POPS_MAX` times, because the writers are faster than one pop
a step. Messages whose invisible time is nearly over are not acked, as Apache's client does.

Once the load has stopped sending, members neither forget nor die, so that what is pending ends.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from rmqkit.client.message import MessageExt
from rmqkit.drill.plan import POP
from rmqkit.drill.real.services.client_threads import ClientThreads
from rmqkit.drill.real.takeover import Peers
from rmqkit.drill.services import scripts
from rmqkit.drill.services.pop_requests import ack_request, pop_request
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies.pop import MESSAGES_MAX, ReceiptHandle

#: a popped message with its receipt handle
Popped = tuple[MessageExt, ReceiptHandle]

#: pops of one broker in one step
POPS_MAX = 8
#: a message is not acked in the last part of its invisible time
EXPIRES_MS = 250
#: pause between two steps once the load has stopped sending
DRAIN_PAUSE_S = 0.1


class PopLoad:
    """The members of the group that pops."""

    def __init__(self, rows: ServiceRows, *, nameserver: Address, nodes: Mapping[str, str], brokers: Sequence[str]) -> None:
        """`nodes` maps addresses to node names; `brokers` are the names of all broker groups."""
        self._rows = rows
        self._nameserver = nameserver
        self._nodes = nodes
        self._brokers = brokers
        self._threads = ClientThreads()
        self._wall_ms = time.time() * 1000 - rows.now_ms()

    def start(self) -> None:
        self._threads.begin()
        for number in range(scripts.POP_MEMBERS):
            self._threads.read(scripts.popper(number), partial(self._work, number))

    def stop_sending(self, join_s: float) -> None:
        self._threads.stop_sending(join_s)

    def close(self, join_s: float) -> None:
        self._threads.close(join_s)

    def _work(self, number: int) -> None:
        member = scripts.popper(number)
        threads = self._threads
        peers = Peers(self._nameserver)
        try:
            for order in scripts.pop_script(self._rows.plan, number):
                is_draining = not threads.sending.is_set()
                if not threads.reading.is_set():
                    return
                time.sleep(DRAIN_PAUSE_S if is_draining else order.pause_ms / 1000)
                if is_draining:
                    order = order._replace(batch=MESSAGES_MAX, work_ms=0, dies=False)
                held = [each for broker in self._brokers for each in self._pop(member, broker, order, peers)]
                if order.dies and held:
                    peers.close()
                    time.sleep(scripts.DEAD_MS / 1000)
                    peers = Peers(self._nameserver)
                    continue
                time.sleep(order.work_ms / 1000 if held else 0.0)
                for message, handle in held:
                    if is_draining or scripts.is_acked(message.keys or "", message.reconsume_times):
                        self._ack(member, message.keys or "", handle, peers)
        finally:
            peers.close()

    def _pop(self, member: str, broker: str, order: scripts.PopOrder, peers: Peers) -> list[Popped]:
        """Pop the master of one group, and record what it gave."""
        rows = self._rows
        address = peers.master_of(rows.name, broker)
        found: list[Popped] = []
        for _ in range(POPS_MAX if address else 0):
            invoke_ms = rows.now_ms()
            request = pop_request(rows.name, rows.group(POP), order, round(time.time() * 1000))
            given = peers.ask(address, lambda asked, request=request: asked.pop(request, broker)) or []  # type: ignore[misc]
            for message, handle in given:
                pop_ms = round(handle.pop_ms - self._wall_ms)
                node = self._nodes.get(address, address)
                rows.popped(member, message, handle, node=node, pop_ms=pop_ms, invoke_ms=invoke_ms)
            found += given
            if len(given) < order.batch:
                break
        return found

    def _ack(self, member: str, key: str, handle: ReceiptHandle, peers: Peers) -> None:
        """Ack a message at the master that the route names now, if it is still hidden."""
        rows = self._rows
        invoke_ms = rows.now_ms()
        if invoke_ms > handle.pop_ms - self._wall_ms + handle.invisible_ms - EXPIRES_MS:
            return
        address = peers.master_of(rows.name, handle.broker_name)
        if not address:
            return
        request = ack_request(rows.name, rows.group(POP), handle)
        done = peers.ask(address, lambda asked: asked.ack(request))
        error = "" if done is not None else peers.error or "no answer"
        rows.acked(member, key, handle, node=self._nodes.get(address, address), invoke_ms=invoke_ms, error=error)
