"""Questions: asks a producer how the transaction of a half ended.

Source: `broker/.../transaction/AbstractTransactionalMessageCheckListener.sendCheckMessage`.
"""

from rmqkit.broker.client_calls import ClientCalls
from rmqkit.broker.special.transactions import rewrite
from rmqkit.runtime.ports import Log
from rmqkit.store.contract import PutResult
from rmqkit.wire import properties as props
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.record import Record
from rmqkit.wire.schemas.calls import CheckTransactionStateRequest
from rmqkit.wire.topic_names import HALF_TOPIC

_GROUP = props.PROPERTY_PRODUCER_GROUP.encode()
_UNIQ = props.PROPERTY_UNIQ_KEY.encode()


class Questions:
    """Sends CHECK_TRANSACTION_STATE (39) to producers."""

    def __init__(self, log: Log, calls: ClientCalls, host: bytes, broker_name: str) -> None:
        self._log = log
        self._calls = calls
        self._host = host
        self._broker_name = broker_name

    def ask(self, record: Record, place: PutResult) -> bool:
        """Ask about a half whose copy is at `place`. Return whether a producer is online."""
        unique = props.find(record.properties, _UNIQ)
        unique_id = None if unique is None else unique.decode("utf-8", "replace")
        group = (props.find(record.properties, _GROUP) or b"").decode("utf-8", "replace")
        request = CheckTransactionStateRequest(
            topic=HALF_TOPIC,
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.phy_offset,
            msg_id=unique_id,
            transaction_id=unique_id,
            offset_msg_id=offset_id(self._host, place.phy_offset),
            bname=self._broker_name,
        )
        body = rewrite.question(record, (place.queue_offset, place.phy_offset))
        is_sent = self._calls.ask_producer(group, request, body)
        if not is_sent:
            self._log.warning("transaction-producer-absent", group=group, offset=place.queue_offset)
        return is_sent
