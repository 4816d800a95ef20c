"""Pop on real processes: two members of one group that pop, ack, forget and die.

Members are raw requests over connections of their own, to the broker that the current route names
as master of each group, as a client would send them that has just learned the route. A member that
dies closes its connections and loses what it holds. The broker keeps nothing else of a member, so
this is all that it could see of a process that ends.

A member pops the topic of the plain messages at all brokers. In one step it pops a broker until it
gets less than a whole batch or holds `HELD_MAX` messages, because the writers are faster than one
pop a step. Messages whose invisible time is nearly over are not acked, as Apache's client does.

Once the load has stopped sending, members neither forget nor die, so that what is pending ends.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from rmqkit.client.message import MessageExt
from rmqkit.drill.plan import POP
from rmqkit.drill.real.client_threads import ClientThreads
from rmqkit.drill.real.node_client import NodeClient
from rmqkit.drill.real.peers import Peers
from rmqkit.drill.services import scripts
from rmqkit.drill.services.pop_requests import ack_request, pop_request
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies.pop import MESSAGES_MAX, ReceiptHandle
from rmqkit.wire.schemas.pop import PopMessageRequest

#: a popped message with its receipt handle
Popped = tuple[MessageExt, ReceiptHandle]

#: a member pops a broker again in the same step if it then holds at most so many of its messages
HELD_MAX = 32
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
        member = self._member(number)
        try:
            for order in scripts.pop_script(self._rows.plan, number):
                if not self._threads.reading.is_set():
                    return
                is_draining = not self._threads.sending.is_set()
                time.sleep(DRAIN_PAUSE_S if is_draining else order.pause_ms / 1000)
                if is_draining:
                    order = order._replace(batch=MESSAGES_MAX, work_ms=0, dies=False)
                member.find_masters(self._brokers)
                held = [each for broker in self._brokers for each in member.pop(broker, order)]
                if order.dies and held:
                    member.close()
                    time.sleep(scripts.DEAD_MS / 1000)
                    member = self._member(number)
                    continue
                time.sleep(order.work_ms / 1000 if held else 0.0)
                for message, handle in held:
                    if is_draining or scripts.is_acked(message.keys or "", message.reconsume_times):
                        member.ack(message.keys or "", handle)
        finally:
            member.close()

    def _member(self, number: int) -> "_Member":
        return _Member(self._rows, scripts.popper(number), Peers(self._nameserver), self._nodes, self._wall_ms)


class _Member:
    """One life of a member: its connections, and the masters that it knows."""

    def __init__(self, rows: ServiceRows, name: str, peers: Peers, nodes: Mapping[str, str], wall_ms: float) -> None:
        """`wall_ms` is the wall time at the drill's time 0."""
        self._rows = rows
        self._name = name
        self._peers = peers
        self._nodes = nodes
        self._wall_ms = wall_ms
        #: broker group → address of its master by the last known route; "" if it has none
        self._masters: dict[str, str] = {}

    def find_masters(self, brokers: Sequence[str]) -> None:
        """Ask for the routes of these broker groups."""
        for broker in brokers:
            self._masters[broker] = self._peers.master_of(self._rows.name, broker)

    def pop(self, broker: str, order: scripts.PopOrder) -> list[Popped]:
        """Pop the master of one group, and record what it gave."""
        rows, address = self._rows, self._masters[broker]
        found: list[Popped] = []
        while address and len(found) + order.batch <= max(order.batch, HELD_MAX):
            invoke_ms = rows.now_ms()
            request = pop_request(rows.name, rows.group(POP), order, round(time.time() * 1000))
            given = self._peers.ask(address, partial(_pop, request, broker))
            node = self._nodes.get(address, address)
            if given is None:
                if self._peers.was_sent:
                    rows.pop_lost(self._name, broker, node=node, invoke_ms=invoke_ms, error=self._peers.error)
                break
            for message, handle in given:
                pop_ms = round(handle.pop_ms - self._wall_ms)
                rows.popped(self._name, message, handle, node=node, pop_ms=pop_ms, invoke_ms=invoke_ms)
            found += given
            if len(given) < order.batch:
                break
        return found

    def ack(self, key: str, handle: ReceiptHandle) -> None:
        """Ack a message at the master of its group, if it is still hidden."""
        rows, broker = self._rows, handle.broker_name
        invoke_ms = rows.now_ms()
        address = self._masters.get(broker, "")
        if not address or invoke_ms > handle.pop_ms - self._wall_ms + handle.invisible_ms - EXPIRES_MS:
            return
        request = ack_request(rows.name, rows.group(POP), handle)
        error = "" if self._peers.ask(address, lambda asked: asked.ack(request)) else self._peers.error or "no answer"
        rows.acked(self._name, key, handle, node=self._nodes.get(address, address), invoke_ms=invoke_ms, error=error)
        if error:
            self.find_masters([broker])

    def close(self) -> None:
        self._peers.close()


def _pop(request: PopMessageRequest, broker: str, asked: NodeClient) -> list[Popped]:
    return asked.pop(request, broker)
