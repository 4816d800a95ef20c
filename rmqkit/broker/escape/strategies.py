"""The built-in escape strategies, by the name that `escapeStrategy` picks.

- `none`: nothing escapes; due messages wait until the group has a master again.
- `local`: puts messages on a master in the same process (`local.py`).
- `remote`: sends messages to a live master of another group (`remote.py`).
- `auto`: tries `local`, then `remote` if no master in the process accepts the message.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from rmqkit.broker.escape.contract import UNKNOWN, EscapeStrategy, Escaping, Then, facts_of
from rmqkit.broker.escape.host import EscapeHost
from rmqkit.broker.escape.local import Local
from rmqkit.broker.escape.remote import Remote
from rmqkit.store.contract import PutStatus

NONE = "none"


class Stay:
    """The strategy `none`: refuses every message."""

    def __init__(self, broker: EscapeHost) -> None:
        pass

    def put(self, message: Escaping, then: Then) -> None:
        then(PutStatus.SERVICE_NOT_AVAILABLE)

    def waiting(self) -> int:
        return 0

    def facts(self) -> dict[str, str]:
        return {"escapeWhy": "escapeStrategy is none: due messages wait for the master of the group"}

    def stop(self) -> None:
        pass


class Auto:
    """The strategy `auto`: `local` first, then `remote`.

    With `own_group` the remote side may also use the master of this broker's own group, once it is
    back.
    """

    def __init__(self, broker: EscapeHost, *, own_group: bool = False) -> None:
        self.local = Local(broker)
        self.remote = Remote(broker, own_group=own_group)
        self.why = ""

    def put(self, message: Escaping, then: Then) -> None:
        self.local.put(message, partial(self._tried, message, then))

    def _tried(self, message: Escaping, then: Then, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK or status in UNKNOWN:
            self.why = "" if status is PutStatus.PUT_OK else self.local.why
            then(status)
        else:
            self.remote.put(message, partial(self._ended, then))

    def _ended(self, then: Then, status: PutStatus) -> None:
        self.why = self.remote.why
        then(status)

    def waiting(self) -> int:
        return 0

    def facts(self) -> dict[str, str]:
        return facts_of(self.why, Counter(self.local.put_counts) + Counter(self.remote.put_counts))

    def stop(self) -> None:
        self.local.stop()
        self.remote.stop()


ESCAPE_STRATEGIES: Mapping[str, Callable[[EscapeHost], EscapeStrategy]] = {
    NONE: Stay,
    "local": Local,
    "remote": Remote,
    "auto": Auto,
}
