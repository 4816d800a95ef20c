"""Events: the changes of the table of broker sets, as the controller's log stores them.

One entry of the log is the list of events of one decision, as JSON with a number for the format. An
event says what has become, never what was asked for: it depends on no clock and no setting, so that
every controller that applies the same entries has the same table.

An entry is decoded once: a controller of a group asks whether a peer's entry fits before it accepts
it, and applies it soon after.

The format is private to rmqkit. Source of the kinds: `controller/.../impl/event/*Event.java`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from rmqkit.errors import RemoteProtocolError

FORMAT = 1
#: the largest id or epoch; a larger one is forged, and could not be counted up
NUMBER_MAX = 2**62
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: entries whose events are kept; that of a leader and of its followers is applied a few later
DECODED_MAX = 16


class SetEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="event"):
    """A change of one broker set."""

    broker_name: str


class NewReplica(SetEvent, frozen=True, kw_only=True, rename="camel", tag="newReplica"):
    """A broker has taken an id. The first one of a set creates the set."""

    cluster: str
    broker_id: Number
    address: str
    check_code: str


class NewAddress(SetEvent, frozen=True, kw_only=True, rename="camel", tag="newAddress"):
    """A broker is at another address."""

    broker_id: Number
    address: str


class NewSyncStateSet(SetEvent, frozen=True, kw_only=True, rename="camel", tag="newSyncStateSet"):
    """The master has changed the SyncStateSet; the epoch of the set rises by one."""

    broker_ids: tuple[Number, ...]


class NewMaster(SetEvent, frozen=True, kw_only=True, rename="camel", tag="newMaster"):
    """A broker is master: both epochs rise by one, and it alone is in the SyncStateSet.

    None: the master is dead and nobody could take over. The master's epoch rises, the SyncStateSet
    stays, so only one of its members can be elected next.
    """

    broker_id: Number | None


class Removal(SetEvent, frozen=True, kw_only=True, rename="camel", tag="removal"):
    """Brokers have left the set for good; None: the whole set is gone."""

    broker_ids: tuple[Number, ...] | None


AnyEvent = NewReplica | NewAddress | NewSyncStateSet | NewMaster | Removal


class _Entry(msgspec.Struct, rename="camel"):
    format: int
    events: list[AnyEvent]


_decoder = msgspec.json.Decoder(_Entry)


def encode_entry(events: Sequence[AnyEvent]) -> bytes:
    """Return the log entry of one decision."""
    return msgspec.json.encode(_Entry(FORMAT, list(events)))


@lru_cache(maxsize=DECODED_MAX)
def decode_entry(entry: bytes) -> Sequence[AnyEvent]:
    """Return the events of a log entry. Raises RemoteProtocolError if it is none of this format."""
    try:
        read = _decoder.decode(entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"entry of the controller's log: {error}") from None
    if read.format != FORMAT:
        raise RemoteProtocolError(f"entry of the controller's log has format {read.format}, this release reads {FORMAT}")
    return tuple(read.events)
