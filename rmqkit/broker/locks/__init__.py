"""Queue locks for ordered consumption, and the lock modes that decide on them.

lock_table       which member of a group holds which queue, and until when
contract         what a lock mode is (`LockMode`); the mode `loose`
strict           the mode `strict`: a quorum of the broker group grants
ballot           one attempt to collect a quorum for a client's queues
unlock_retries   repeats vote withdrawals until every peer acknowledges
recovered_votes  votes learned from peers after a restart: they block, but never grant
vote_recovery    whether this broker knows all votes that it cast, and so may cast new ones
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmqkit.broker.locks.contract import LockMode, Loose
from rmqkit.broker.locks.lock_table import LockTable

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

__all__ = ["LOCK_MODES", "LockMode", "LockTable", "Loose"]


def _loose(broker: "BrokerView") -> LockMode:
    return Loose(broker.leases)


def _strict(broker: "BrokerView") -> LockMode:
    # Imported on use: it would cost every other broker start-up time.
    from rmqkit.broker.locks.strict import Strict

    return Strict(broker)


#: factories of the built-in lock modes, by their name in `lockMode`
LOCK_MODES: Mapping[str, Callable[["BrokerView"], LockMode]] = {"loose": _loose, "strict": _strict}
