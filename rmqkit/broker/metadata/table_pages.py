"""Pages: fetches a whole table of another broker page by page.

The table is that of topics (21) or of subscription groups (201). Each page names the version of
its table. Pages of two versions do not fit together, so a new version restarts the fetch. The
table is complete when it has as many entries as the answers report. Only a complete table is
passed on, because the caller deletes every entry that is missing from it. (Apache's slave stops
one entry too early, and deletes the last topic of 2,001.)

Source: `broker/.../out/BrokerOuterAPI.{getAllTopicConfig,getAllSubscriptionGroupConfig}`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.bodies import SubscriptionGroupTable, TopicConfigTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.groups import GetAllSubscriptionGroupRequest, GetAllSubscriptionGroupResponse
from rmqkit.wire.schemas.topics import GetAllTopicConfigRequest, GetAllTopicConfigResponse

#: entries per page
PAGE_SIZE = 2000
TIMEOUT_MS = 30_000
#: a fetch fails after this number of restarts
RESTARTS_MAX = 10

#: callback: (table, ""), or (None, the reason for the failure)
Fetched = Callable[[Any, str], None]


class TableKind(NamedTuple):
    """How to request a kind of table, and how to read its pages."""

    name: str
    code: RequestCode
    #: builds a request from (number of the first entry, version as JSON)
    request: Callable[[int, str], Ext]
    decode: Callable[[bytes], Any]
    #: total number of entries; None if the broker does not support pages, and sent the whole table
    total: Callable[[Reply], int | None]
    #: fields of the body that are merged over all pages; the first one counts the entries
    parts: tuple[str, ...]

    def entries(self, table: Any) -> Mapping[str, Any]:
        """Return the entries of a table, or of one page, by name."""
        found: Mapping[str, Any] = getattr(table, self.parts[0])
        return found


TOPICS = TableKind(
    "topics",
    RequestCode.GET_ALL_TOPIC_CONFIG,
    lambda first, version: GetAllTopicConfigRequest(topic_seq=first, max_topic_num=PAGE_SIZE, data_version=version),
    TopicConfigTable.decode,
    lambda reply: reply.read(GetAllTopicConfigResponse).total_topic_num,
    ("topic_config_table",),
)
GROUPS = TableKind(
    "groups",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    lambda first, version: GetAllSubscriptionGroupRequest(group_seq=first, max_group_num=PAGE_SIZE, data_version=version),
    SubscriptionGroupTable.decode,
    lambda reply: reply.read(GetAllSubscriptionGroupResponse).total_group_num,
    ("subscription_group_table", "forbidden_table"),
)


class Pages:
    """The fetch of one table. It tries `addresses` in turn until a connection succeeds."""

    def __init__(self, remoting: Remoting, kind: TableKind, addresses: Sequence[Address], then: Fetched) -> None:
        self._remoting = remoting
        self._kind = kind
        self._addresses = list(addresses)
        self._then = then
        #: the pages received until now, merged into one
        self._table: Any = None
        self._version = ""
        self._restarts = 0

    @property
    def _count(self) -> int:
        return 0 if self._table is None else len(self._kind.entries(self._table))

    def fetch(self) -> None:
        request = self._kind.request(self._count, self._version)
        self._remoting.call(self._addresses[0], self._kind.code, request, timeout_ms=TIMEOUT_MS, then=self._answered)

    def _answered(self, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed):
            if outcome.kind == "connect" and len(self._addresses) > 1:
                self._addresses.pop(0)
                self.fetch()
            else:
                self._then(None, f"{outcome.address} gave no answer: {outcome.text}")
            return
        if not outcome.is_ok:
            self._then(None, f"{outcome.address} answered {outcome.code}: {outcome.remark}")
            return
        try:
            page, total = self._kind.decode(outcome.body), self._kind.total(outcome)
        except RemoteProtocolError as error:
            self._then(None, f"{outcome.address} sent an answer that cannot be decoded: {error}")
            return
        self._add(page, total, outcome.address)

    def _add(self, page: Any, total: int | None, address: Address) -> None:
        version = page.data_version.encode().decode()
        if self._version and version != self._version:
            self._restart(version)
            return
        self._version = version
        before = self._count
        if self._table is None:
            self._table = page
        else:
            for part in self._kind.parts:
                getattr(self._table, part).update(getattr(page, part))
        if total is None or self._count == total:
            self._then(self._table, "")
        elif self._count > total or self._count == before:
            self._then(None, f"{address} sent {self._count} entries, but reports {total}")
        else:
            self.fetch()

    def _restart(self, version: str) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            self._then(None, f"the table changed more than {RESTARTS_MAX} times during the fetch")
            return
        self._version, self._table = version, None
        self.fetch()
