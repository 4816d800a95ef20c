"""Escape: puts due messages of a group without a master on the master of another group.

bridge      the entry point for the rest of the broker
contract    what an escape strategy is
strategies  the built-in strategies: none, local, remote, auto
local       puts a message on a master in the same process
remote      sends a message to a live master of another group
masters     finds the masters that `remote` may use
rewrite     prepares a message for its escape
host        what this package uses of a broker
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
