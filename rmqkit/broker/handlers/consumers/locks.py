"""Queue locks of ordered consumption: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

The broker's lock mode decides. Invalid requests, with names that are too long or too many queues,
are refused before they reach it. Clients lock at the master or at the acting master. A peer broker
that asks for this broker's vote alone (`only_this_broker`) is served in every role.

An acting slave that hands over to its master (`roles/handover.py`) grants no lock, but passes
releases on to the master, which has copied the leases.

Source: `broker/.../processor/AdminBrokerProcessor.java` (`lockBatchMQ`, `unlockBatchMQ`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.broker.handlers.demands import LOCKED
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

#: limit of queues in one request
QUEUES_MAX = 16_384
CLIENT_ID_SIZE_MAX = 1_024


@rows.handles(RequestCode.LOCK_BATCH_MQ, NoFields, access=LOCKED)
def lock(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Lock queues for a client. The answer has those it holds now; another client has the rest."""
    asked = _checked(broker, call)
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


@rows.handles(RequestCode.UNLOCK_BATCH_MQ, NoFields, access=LOCKED)
def unlock(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Release queues that a client holds."""
    asked = _decoded(call) if broker.role.handover else _checked(broker, call)
    call.changing()
    master = broker.replication.master_address
    if broker.role.handover and master is not None and not asked.only_this_broker:
        asked.only_this_broker = True
        broker.remoting.oneway(master, RequestCode.UNLOCK_BATCH_MQ, None, asked.encode())
        asked.only_this_broker = False
    broker.locks.unlock(
        asked.consumer_group,
        asked.client_id,
        asked.mq_set,
        only_this_broker=asked.only_this_broker,
        now_ms=broker.clock.mono_ms,
        more=asked.rmqkit or NOTHING_MORE,
    )
    return call.ok()


def _checked(broker: "BrokerView", call: Call[NoFields]) -> LockBatchBody:
    """Return the decoded request. Raises Refused if it is invalid or this broker does not lock.

    Unlocks are refused too: one that was delayed could release a queue that the client has locked
    at another broker since.
    """
    asked = _decoded(call)
    if not asked.only_this_broker and not broker.role.does(Duty.LOCK):
        role = broker.role
        slave = f"the broker is a {role.role} and locks no queues: ask its master or acting master"
        why = role.refusal or role.handover or slave
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, why)
    return asked


def _decoded(call: Call[NoFields]) -> LockBatchBody:
    asked = LockBatchBody.decode(call.body)
    fault = group_fault(asked.consumer_group)
    if fault is None and not 0 < len(asked.client_id) <= CLIENT_ID_SIZE_MAX:
        fault = f"a client id must have 1 to {CLIENT_ID_SIZE_MAX} characters"
    if fault is None and len(asked.mq_set) > QUEUES_MAX:
        fault = f"{len(asked.mq_set)} queues in one request, the limit is {QUEUES_MAX}"
    if fault is None and any(len(each.topic) + len(each.broker_name) > 2 * RETRY_TOPIC_SIZE_MAX for each in asked.mq_set):
        fault = "a queue has a topic or broker name that is too long"
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    return asked
