"""Shared by handlers of saved tables (topics, groups, settings): answers after saves, and pages."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rmqkit.config import NodeConfig
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Answer, Call, Handler, Refused, Response
from rmqkit.wire.bodies import DataVersion
from rmqkit.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView


class SavedTable(Protocol):
    """A table that is saved to a file."""

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""


def answer_when_kept(
    call: Call[Any], table: SavedTable, when_kept: Callable[[Callable[[], None]], None], what: str
) -> Response:
    """Answer once `when_kept` has called back: an error if the file `what` could not be written."""

    def kept(answer: Answer) -> None:
        error = table.save_error
        if error is None:
            answer(call.ok())
        else:
            answer(call.error(ResponseCode.SYSTEM_ERROR, f"done, but {what} could not be written: {error}"))

    return call.later(lambda answer: when_kept(lambda: kept(answer)))


def check_may_change(broker: "BrokerView") -> None:
    """Raise Refused on a slave, whose tables are copies of its master's.

    Source: `AdminBrokerProcessor.validateSlave` of 4.9.
    """
    if broker.replication.is_slave:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
        )


def handled_when_saved(broker: "BrokerView", call: Call[Any], topic: str, handler: Handler) -> Response:
    """Handle a put again from the start, once the file of topics has its topic.

    If the put were acknowledged before, its message would be unreachable after a crash.
    """

    def saved() -> None:
        if not call.is_alive and not call.oneway:
            call.finished = True
        elif topic in broker.topics.unsaved:
            why = f"topic {topic} could not be saved: {broker.topics.save_error}"
            call.finish(call.error(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {why}"))
        else:
            broker.remoting.handle(call, handler)

    broker.topics.when_saved(saved)
    return LATER


def page_of(
    config: NodeConfig,
    names: Iterable[str],
    version: DataVersion,
    *,
    first: int | None,
    asked_version: str | None,
    count: int | None,
) -> list[str] | None:
    """Return the names of one page, in order; None if the whole table is to be sent.

    Pages of different versions of a table do not fit together. So a peer that names another version
    than the current one gets the first page.

    Source: `TopicConfigManager.subTopicConfigTable`, `SubscriptionGroupManager.subGroupTable`.
    """
    settings = config.topics
    if not settings.enable_split_metadata or (first is None and asked_version is None and count is None):
        return None
    begin = max(0, first or 0)
    if not _is_version(asked_version, version):
        begin = 0
    size = max(0, min(settings.split_metadata_size, settings.split_metadata_size if count is None else count))
    return sorted(names)[begin : begin + size]


def _is_version(text: str | None, version: DataVersion) -> bool:
    try:
        return bool(text) and DataVersion.decode(text or "") == version
    except RemoteProtocolError:
        return False
