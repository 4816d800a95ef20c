"""Implements the log port of clients with `logging`. The logger is `rmqkit.client`."""

import logging
from typing import Any

logger = logging.getLogger("rmqkit.client")


class StdlibLog:
    """Logs an event name and its fields as one line: `route-kept topic=T error=...`.

    With `quiet`, warnings are logged at DEBUG. The I/O loop uses this: its warnings, such as a slow
    turn, matter to servers but not to programs that send messages.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._warning = logging.DEBUG if quiet else logging.WARNING

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(self._warning, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, "%s%s", event, "".join(f" {key}={value}" for key, value in fields.items()))
