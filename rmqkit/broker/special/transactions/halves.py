"""Halves: reads half messages from the half queue of this broker's store."""

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.transactions import rewrite
from rmqkit.errors import CorruptRecord
from rmqkit.store.contract import Entry, StorageEngine
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import HALF_TOPIC


class Halves:
    """The half messages in the store, by their offset in the half queue."""

    def __init__(self, context: BrokerContext, store: StorageEngine) -> None:
        self._context = context
        self._store = store

    def at(self, offset: int) -> Record | None:
        """Return the half at this offset, or None if there is none that could be put."""
        known = self._store.queue_range(HALF_TOPIC, 0)
        if not known.offset_min <= offset < known.offset_max:
            return None
        entries = self._store.entries(HALF_TOPIC, 0, offset, 1)
        return self.of(entries[0]) if entries else None

    def of(self, entry: Entry) -> Record | None:
        """Return the half of an entry of the queue, or None if there is none that could be put.

        A record that cannot be used is logged: its message is lost.
        """
        if not entry.size:
            return None
        why = "its record is no longer in the log"
        try:
            record = decode_record(self._store.read_log(entry.phy_offset, entry.size), check_crc=True)
            if isinstance(record, Record) and record.topic == HALF_TOPIC and record.phy_offset == entry.phy_offset:
                if rewrite.target(record.properties) is not None:
                    return record
                why = "its REAL_TOPIC or REAL_QID is missing or invalid"
        except CorruptRecord as error:
            why = str(error)
        self._context.log.error("half-message-dropped", offset=entry.queue_offset, why=why)
        return None
