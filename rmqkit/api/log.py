"""The log port of clients: the standard library's logging, logger `rmqkit.client`."""

import logging
from typing import Any

logger = logging.getLogger("rmqkit.client")


class StdlibLog:
    """Event name and fields as one line, `route-kept topic=T error=...`.

    `quiet` is for the driver, whose warnings (a slow turn) matter to servers and not to a program that sends messages.
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
