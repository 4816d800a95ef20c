"""ClientCalls: requests that the broker sends to clients, on the connections that clients opened.

Each request serves a third party: an administrator (running info, consuming one message directly,
the progress of a group) or a client that sends a reply message. A client has 10 s to answer, as
upstream, unless the caller sets another timeout. At most `CALLS_MAX` requests may be pending, with
bodies of at most `BYTES_MAX` in total. Beyond that the third party is refused with SYSTEM_BUSY.

Source: `broker/.../client/net/Broker2Client.java` (`callClient`),
`AdminBrokerProcessor.callConsumer`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.tables.clients import ClientChannel, Clients
from rmqkit.runtime.calls import Answer, Call, CallFailed, Outcome, Refused, Response, Then
from rmqkit.runtime.connection import Connection
from rmqkit.wire.codes import RequestCode, ResponseCode, Version
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.calls import CheckTransactionStateRequest, NotifyConsumerIdsChangedRequest

CALL_TIMEOUT_MS = 10_000
#: limit of pending calls
CALLS_MAX = 1_000
#: limit of the body bytes of all pending calls: bodies stay in memory until the answer comes
BYTES_MAX = 64 * 1024 * 1024


class ClientCalls:
    """Sends requests to clients and enforces the limits of pending ones."""

    def __init__(
        self, context: BrokerContext, clients: Clients, calls_max: int = CALLS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._context = context
        self._remoting = context.remoting
        self._clients = clients
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._asked = 0
        self.waiting = 0
        self.waiting_bytes = 0

    def check_room(self, count: int = 1, size: int = 0) -> None:
        """Raise Refused if `count` more calls, or `size` more body bytes, exceed a limit.

        While no call is pending, a body of any size is accepted.
        """
        if self.waiting + count > self._calls_max or (self.waiting and self.waiting_bytes + size > self._bytes_max):
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"the broker already waits for {self.waiting} answers from clients ({self.waiting_bytes} bytes)",
            )

    def call(
        self,
        conn: Connection,
        code: int,
        ext: Ext | Mapping[str, str] | None,
        body: bytes,
        then: Then,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """Send a request to a client and call `then` once with the outcome.

        Enforces no limit: call `check_room` first.
        """
        self.waiting += 1
        self.waiting_bytes += len(body)

        def ended(outcome: Outcome) -> None:
            self.waiting -= 1
            self.waiting_bytes -= len(body)
            then(outcome)

        self._remoting.call(conn, code, ext, body, timeout_ms=timeout_ms, then=ended)

    def forward(self, call: "Call[Any]", group: str, client_id: str, body: bytes = b"") -> Response:
        """Forward a request to a member of a consumer group; return its answer to the caller."""
        member = self._clients.consumer(group, client_id)
        who = f"<{group}> <{client_id}>"
        if member is None:
            return call.error(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        if is_older(member, Version.V3_1_8_SNAPSHOT):
            remark = f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it"
            return call.error(ResponseCode.SYSTEM_ERROR, remark)
        self.check_room(size=len(body))

        def answered(answer: Answer, outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                late = outcome.kind == "timeout"
                code = ResponseCode.CONSUME_MSG_TIMEOUT if late else ResponseCode.SYSTEM_ERROR
                what = f"consumer {who} Timeout" if late else f"invoke consumer {who} Exception"
                answer(call.error(code, f"{what}: {outcome.text}"))
            else:
                ext = {name: str(value) for name, value in outcome.ext.items()}
                answer(Response(outcome.code, ext, outcome.body, outcome.remark or None))

        return call.later(lambda answer: self.call(member.conn, call.code, call.args, body, partial(answered, answer)))

    def ask_producer(self, group: str, request: CheckTransactionStateRequest, body: bytes) -> bool:
        """Ask one producer of a group how a transaction ended, one-way. The producers take turns.

        Return whether a producer is there to ask. Source: `ProducerManager.getAvailableChannel`.
        """
        members = [each.conn for each in self._clients.producers.get(group, {}).values() if not each.conn.closing]
        if not members:
            return False
        self._asked += 1
        self._remoting.oneway(members[self._asked % len(members)], RequestCode.CHECK_TRANSACTION_STATE, request, body)
        return True

    def notify_groups(self) -> None:
        """Notify the members of groups whose membership changed, so that they rebalance."""
        changed = self._clients.take_changed()
        if not self._context.config.registration.notify_consumer_ids_changed_enable:
            return
        for group in changed:
            note = NotifyConsumerIdsChangedRequest(consumer_group=group.name)
            for member in group.members.values():
                self._remoting.oneway(member.conn, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, note)


def is_older(member: ClientChannel, version: Version) -> bool:
    """Return whether a client is older than a release.

    Clients in languages other than Java number their versions freely, but above all releases that
    are compared here.
    """
    return member.version < version
