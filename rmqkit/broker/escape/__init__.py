"""Escape: where messages go that are due while their group has no master.

`bridge.py` is what the broker asks, `contract.py` what a strategy is, `strategies.py` the built-in ones.
"""

from rmqkit.broker.escape.bridge import Escape, chosen
from rmqkit.broker.escape.contract import UNKNOWN, EscapeStrategy, Escaping, Then
from rmqkit.broker.escape.local import Inbox, Local
from rmqkit.broker.escape.remote import Remote
from rmqkit.broker.escape.strategies import ESCAPE_STRATEGIES, Auto

__all__ = [
    "ESCAPE_STRATEGIES",
    "UNKNOWN",
    "Auto",
    "Escape",
    "EscapeStrategy",
    "Escaping",
    "Inbox",
    "Local",
    "Remote",
    "Then",
    "chosen",
]
