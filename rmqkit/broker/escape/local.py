"""Local: puts an escaping message into the store of a master in the same process.

The brokers of a process take turns, and a broker may be changed only in its own turn. So a message
goes into the master's `Inbox`. A duty of the master stores it in the master's turn. The result
reaches the acting master in one of its own turns, through its own inbox.

    acting master                         master
    Local.put ─────────► Inbox.leave      a duty: append, wait for disk and copies as a send does
    Inbox: then(status)  ◄───────────────  Inbox.put_result

The target is the first master by name that serves, accepts sends and has the topic. A missing
retry or dead-letter topic is created, as a send-back would create it.

Source: `broker/.../BrokerController.java` (`peekMasterBroker`),
`container/.../BrokerContainer.java`.
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.broker.escape.contract import Escaping, Then, facts_of
from rmqkit.broker.escape.host import EscapeHost
from rmqkit.store.contract import PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, PermName
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqkit.wire.bodies import TopicConfig

DUTY = "escape-inbox"
#: messages that an inbox holds; a full inbox refuses more
LEFT_MAX = 10_000
_MADE = (RETRY_PREFIX, DLQ_PREFIX)


class Local:
    """The strategy `local`: puts messages on a master in the same process."""

    def __init__(self, broker: EscapeHost) -> None:
        self._broker = broker
        #: messages put, by broker name
        self.put_counts: dict[str, int] = {}
        self.why = ""

    def put(self, message: Escaping, then: Then) -> None:
        why = "no other broker runs in this process"
        for neighbour in sorted(self._broker.neighbours, key=lambda each: each.name):
            why = refusal(neighbour, self._broker, message.put.topic)
            if not why:
                name = neighbour.config.identity.broker_name
                neighbour.escape.inbox.leave(message, self._broker, partial(self._answered, name, then))
                return
        self.why = why
        then(PutStatus.SERVICE_NOT_AVAILABLE)

    def waiting(self) -> int:
        return 0

    def facts(self) -> dict[str, str]:
        return facts_of(self.why, self.put_counts)

    def stop(self) -> None:
        pass

    def _answered(self, name: str, then: Then, status: PutStatus) -> None:
        # The master has stored the message, but has no slave. A retry would only store it again.
        if status is PutStatus.SLAVE_NOT_AVAILABLE:
            status = PutStatus.PUT_OK
        if status is PutStatus.PUT_OK:
            self.why = ""
            self.put_counts[name] = self.put_counts.get(name, 0) + 1
        else:
            self.why = f"{name} in this process: {status.name}"
        then(status)


def refusal(neighbour: EscapeHost, broker: EscapeHost, topic: str) -> str:
    """Return why `neighbour` cannot take a message of this topic from `broker`, "" if it can."""
    name = neighbour.name
    if neighbour.config.identity.broker_name == broker.config.identity.broker_name or not neighbour.role.is_master:
        return f"{name} in this process is not a master of another group"
    if not neighbour.serving or neighbour.stopping:
        return f"{name} in this process is not serving"
    if neighbour.send_blocked:
        return f"{name} in this process: {neighbour.send_blocked}"
    if len(neighbour.escape.inbox) >= LEFT_MAX:
        return f"{name} in this process has a full inbox ({LEFT_MAX} messages)"
    config = neighbour.topics.get(topic)
    if config is None:
        return "" if topic.startswith(_MADE) else f"{name} in this process has no topic {topic}"
    is_open = config.perm & PermName.PERM_WRITE and config.write_queue_nums > 0
    return "" if is_open else f"{name} in this process: topic {topic} is not writable"


class _InboxEntry:
    """A message in an inbox, until the broker that left it has its result."""

    __slots__ = ("asker", "is_ended", "message", "then")

    def __init__(self, message: Escaping, asker: EscapeHost, then: Then) -> None:
        self.message = message
        self.asker = asker
        self.then = then
        self.is_ended = False


class Inbox:
    """A broker's mailbox for the other brokers of its process.

    It holds messages that they leave for this broker to store, and results of messages that this
    broker left with them. A duty of this broker handles both in its own turn.
    """

    def __init__(self, broker: EscapeHost) -> None:
        self._broker = broker
        self._unread: list[_InboxEntry] = []
        self._appended: dict[_InboxEntry, None] = {}
        self._results: list[tuple[Then, PutStatus]] = []
        broker.duties.add(DUTY, self._run, None)

    def __len__(self) -> int:
        return len(self._unread) + len(self._appended)

    def leave(self, message: Escaping, asker: EscapeHost, then: Then) -> None:
        """Leave a message; called by another broker. `then` runs in one of that broker's turns."""
        self._unread.append(_InboxEntry(message, asker, then))
        self._wake()

    def put_result(self, then: Then, status: PutStatus) -> None:
        """Report the result of a message; called by the broker with which it was left."""
        self._results.append((then, status))
        self._wake()

    def stop(self) -> None:
        """Store no further message, and answer every broker that waits for a result."""
        left, self._unread = self._unread, []
        for each in left:
            self._end(each, PutStatus.SERVICE_NOT_AVAILABLE)
        for each in list(self._appended):
            self._end(each, PutStatus.UNKNOWN_ERROR)

    def _wake(self) -> None:
        self._broker.duties.wake(DUTY, 0)

    def _run(self, now_ms: int) -> None:
        told, self._results = self._results, []
        for then, status in told:
            then(status)
        left, self._unread = self._unread, []
        for each in left:
            self._store(each)

    def _store(self, each: _InboxEntry) -> None:
        broker = self._broker
        put, level = each.message.put, each.message.level
        if refusal(broker, each.asker, put.topic):
            # The broker could still take the message when it was left.
            self._end(each, PutStatus.SERVICE_NOT_AVAILABLE)
            return
        config = self._topic(put.topic)
        self._appended[each] = None
        if config.topic_name in broker.topics.unsaved:
            broker.topics.when_saved(partial(self._saved, each))
            return
        put = put._replace(queue_id=put.queue_id % max(1, config.write_queue_nums))
        if level:
            put = put._replace(properties=props.put(put.properties, b"DELAY", b"%d" % level))
            result = broker.delay.append(put, level)
        elif put.sys_flag & MessageSysFlag.TRANSACTION_PREPARED:
            result = broker.transactions.append(put)
        else:
            result = broker.store.append(put)
        broker.puts.await_own(SCHEDULE_TOPIC if level else put.topic, result, partial(self._end, each), copies=True)

    def _saved(self, each: _InboxEntry) -> None:
        """Continue with a message whose topic was new: the topic is saved now, or saving failed."""
        if each.is_ended:
            return  # the broker stopped while the topic was being saved
        del self._appended[each]
        if each.message.put.topic in self._broker.topics.unsaved or self._broker.stopping:
            self._end(each, PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._unread.append(each)
            self._wake()

    def _topic(self, topic: str) -> "TopicConfig":
        topics = self._broker.topics
        config = topics.get(topic)
        return topics.create_system(topic, 1, PermName.PERM_WRITE | PermName.PERM_READ) if config is None else config

    def _end(self, each: _InboxEntry, status: PutStatus) -> None:
        self._appended.pop(each, None)
        if not each.is_ended:
            each.is_ended = True
            each.asker.escape.inbox.put_result(each.then, status)
