"""Members that pop on a simulated cluster; `services/scripts.py` says what they do.

They ask all broker groups in turn, because messages of a broken group return in another one while a
slave acts.
"""

from collections.abc import Callable
from functools import partial

from rmqkit.client.client import Client
from rmqkit.client.message import MessageExt
from rmqkit.drill.plan import POP
from rmqkit.drill.services import scripts
from rmqkit.drill.services.pop_requests import SERVED, ack_request, pop_request, popped_messages
from rmqkit.drill.sim.load import RETRY_MS, SimLoad, begin_flow
from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies.pop import ReceiptHandle
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.pop import PopMessageResponse

BEGIN_MS = 300
TIMEOUT_MS = 600


class SimPoppers:
    """The members. `world_ms` converts the wall time of a node to the drill's clock."""

    def __init__(self, load: SimLoad, node_at: Callable[[Address], str], world_ms: Callable[[str, int], int]) -> None:
        self._load = load
        self._rows = load.services
        self._node_at = node_at
        self._world_ms = world_ms
        self._group = self._rows.group(POP)
        self._brokers = sorted({name.rpartition("-")[0] for name in load.cluster.brokers})

    def begin(self) -> None:
        for number in range(scripts.POP_MEMBERS):
            self._load.client(scripts.popper(number), partial(self._member, number))

    def _member(self, number: int, client: Client) -> None:
        load, name = self._load, scripts.popper(number)

        async def work() -> None:
            for step, order in enumerate(scripts.pop_script(load.plan, number)):
                await load.pause(client, order.pause_ms)
                if not load.reading:
                    return
                batch = await self._pop(client, name, self._brokers[(step + number) % len(self._brokers)], order)
                if order.dies:
                    await client.timers.sleep(scripts.DEAD_MS)
                elif batch:
                    await client.timers.sleep(order.work_ms)
                    for message, handle in batch:
                        if scripts.is_acked(message.keys or "", message.reconsume_times):
                            await self._ack(client, name, message.keys or "", handle)

        client.routes.watch(load.name)
        client.timers.after(BEGIN_MS + 40 * number, lambda: begin_flow(work()))

    async def _pop(
        self, client: Client, name: str, broker: str, order: scripts.PopOrder
    ) -> list[tuple[MessageExt, ReceiptHandle]]:
        address = await self._serving(client, broker)
        if address is None:
            return []
        invoke_ms = self._load.now_ms()
        request = pop_request(self._load.name, self._group, order, client.clock.wall_ms)
        try:
            reply = await client.ask(address, RequestCode.POP_MESSAGE, request, timeout_ms=TIMEOUT_MS, accept=SERVED)
        except ClientError as error:
            if error.maybe_stored:
                node = self._node_at(address)
                self._rows.pop_lost(name, broker, node=node, invoke_ms=invoke_ms, error=str(error))
            return []
        if reply.code != ResponseCode.SUCCESS:
            return []
        batch = popped_messages(reply.read(PopMessageResponse), bytes(reply.body), broker)
        node = self._node_at(address)
        for message, handle in batch:
            pop_ms = self._world_ms(node, handle.pop_ms)
            self._rows.popped(name, message, handle, node=node, pop_ms=pop_ms, invoke_ms=invoke_ms)
        return batch

    async def _ack(self, client: Client, name: str, key: str, handle: ReceiptHandle) -> None:
        invoke_ms, error = self._load.now_ms(), ""
        address = await self._serving(client, handle.broker_name)
        if address is None:
            error = f"{handle.broker_name} has no master"
        else:
            request = ack_request(self._load.name, self._group, handle)
            try:
                await client.ask(address, RequestCode.ACK_MESSAGE, request, timeout_ms=TIMEOUT_MS)
            except ClientError as failed:
                error = str(failed)
        node = self._node_at(address) if address is not None else ""
        self._rows.acked(name, key, handle, node=node, invoke_ms=invoke_ms, error=error)

    async def _serving(self, client: Client, broker: str) -> Address | None:
        """Return the address of the broker's master, or of the slave that acts for it."""
        try:
            await client.routes.find(self._load.name)
        except ClientError:
            await client.timers.sleep(RETRY_MS)
            return None
        return client.routes.master(broker)
