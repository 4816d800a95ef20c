"""Queue locks of ordered consumption: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, decided by the broker's lock mode.

What cannot be a lock is refused before the mode sees it: names beyond their sizes, more queues than one request may name.
Clients lock at the master, or at who acts for it; a member of the group that asks for a vote of its own is always heard.

Source: `broker/.../processor/AdminBrokerProcessor.java` (`lockBatchMQ`, `unlockBatchMQ`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.broker.locks.contract import NOTHING_MORE, More
from rmqkit.broker.names import RETRY_TOPIC_SIZE_MAX, group_fault
from rmqkit.broker.roles import Duty
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: queues of one request
QUEUES_MAX = 16_384
CLIENT_ID_SIZE_MAX = 1_024


@rows.handles(RequestCode.LOCK_BATCH_MQ, NoFields)
def lock(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """The queues that the client holds now; those that another one holds are missing in the answer."""
    asked = _asked(broker, call)
    call.changing()

    def begin(answer: Answer) -> None:
        def then(outcome: Sequence[MessageQueue] | str, more: More = NOTHING_MORE) -> None:
            if isinstance(outcome, str):
                answer(call.error(ResponseCode.SYSTEM_BUSY, outcome))
            else:
                locked = LockBatchAnswer(lock_ok_mq_set=list(outcome), rmqkit=dict(more) or None)
                answer(call.ok(body=locked.encode()))

        broker.locks.lock(
            asked.consumer_group,
            asked.client_id,
            asked.mq_set,
            only_this_broker=asked.only_this_broker,
            now_ms=broker.clock.mono_ms,
            then=then,
            more=asked.rmqkit or NOTHING_MORE,
        )

    return call.later(begin)


@rows.handles(RequestCode.UNLOCK_BATCH_MQ, NoFields)
def unlock(broker: "BrokerView", call: Call[NoFields]) -> Response:
    asked = _asked(broker, call)
    call.changing()
    broker.locks.unlock(
        asked.consumer_group,
        asked.client_id,
        asked.mq_set,
        only_this_broker=asked.only_this_broker,
        now_ms=broker.clock.mono_ms,
        more=asked.rmqkit or NOTHING_MORE,
    )
    return call.ok()


def _asked(broker: "BrokerView", call: Call[NoFields]) -> LockBatchBody:
    """The request. What a client sends to who does not lock any more may have been on its way for long: it may have locked
    the queue again elsewhere, and an unlock would free that."""
    asked = _read(call)
    if not asked.only_this_broker and not broker.role.does(Duty.LOCK):
        role = broker.role
        slave = f"the broker is a {role.role} and locks no queues: its master does, or who acts for it"
        why = role.refusal or slave
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, why)
    return asked


def _read(call: Call[NoFields]) -> LockBatchBody:
    asked = LockBatchBody.decode(call.body)
    fault = group_fault(asked.consumer_group)
    if fault is None and not 0 < len(asked.client_id) <= CLIENT_ID_SIZE_MAX:
        fault = f"a client id has 1 to {CLIENT_ID_SIZE_MAX} characters"
    if fault is None and len(asked.mq_set) > QUEUES_MAX:
        fault = f"{len(asked.mq_set)} queues in one request, the limit is {QUEUES_MAX}"
    if fault is None and any(len(each.topic) + len(each.broker_name) > 2 * RETRY_TOPIC_SIZE_MAX for each in asked.mq_set):
        fault = "a queue has a topic or broker name that is too long"
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    return asked
