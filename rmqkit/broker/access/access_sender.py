"""AccessSender: sends users and rules to the name servers, so that they can check clients (60005).

A name server has no table of users of its own. It knows the users of the broker groups that
register with it. Each broker sends its table after it has registered, and after a change. An Apache
name server answers that it does not know the request; it is then left alone until the next
registration.
"""

from functools import partial

from rmqkit.access.table import AccessTable
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.registration import Registration
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import DataVersion
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from rmqkit.wire.schemas.access import PutAccessTableRequest

DUTY = "access-sender"
#: interval of the check whether a name server lacks the table
LOOK_MS = 1000
TIMEOUT_MS = 3000

#: when a name server has registered the broker, and the version of the table
Sent = tuple[int, DataVersion]


class AccessSender:
    """Keeps the name servers' copies of one broker's table current."""

    def __init__(self, context: BrokerContext, registration: Registration, table: AccessTable) -> None:
        self._context = context
        self._registration = registration
        self._table = table
        self._sent: dict[Address, Sent] = {}
        context.duties.add(DUTY, self._run, context.clock.mono_ms if registration.nameservers else None)
        table.on_change.append(lambda: context.duties.wake(DUTY, context.clock.mono_ms))

    def _run(self, now_ms: int) -> int | None:
        registered = self._registration.registered
        for address, since_ms in registered.items():
            current = since_ms, self._table.version
            if self._sent.get(address) != current and self._table.accounts:
                self._sent[address] = current
                self._send(address, current)
        return now_ms + LOOK_MS if self._registration.nameservers else None

    def _send(self, address: Address, current: Sent) -> None:
        identity = self._context.config.identity
        request = PutAccessTableRequest(
            cluster_name=identity.broker_cluster_name, broker_name=identity.broker_name, broker_id=identity.broker_id
        )
        self._context.remoting.call(
            address,
            OwnRequestCode.PUT_ACCESS_TABLE,
            request,
            self._table.snapshot().encode(),
            timeout_ms=TIMEOUT_MS,
            then=partial(self._answered, address, current),
        )

    def _answered(self, address: Address, current: Sent, outcome: Outcome) -> None:
        if self._sent.get(address) != current:
            return
        if isinstance(outcome, CallFailed):
            del self._sent[address]  # it is sent again at the next check
        elif outcome.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            self._context.log.warning("access-not-sent", nameserver=str(address), code=outcome.code, remark=outcome.remark)
