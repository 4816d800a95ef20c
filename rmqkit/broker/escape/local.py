"""Local: puts an escaping message on a master in the same process, straight into its store.

The brokers of a process take their turns one after the other, and each may only be changed in its own. So a message goes
through an `Inbox` of the master's: a duty of the master stores it in the master's turn, and what became of it is told in a
turn of the broker that asked.

    acting master                         master
    Local.put ─────────► Inbox.leave      a duty: append, wait for disk and copies as a send does
    Inbox: then(status)  ◄───────────────  Inbox.tell

Which master: the first by name that serves, takes sends and has the topic. Topics of retries and dead letters are made
where they are absent, as a send back would make them.

Source: `broker/.../BrokerController.java` (`peekMasterBroker`), `container/.../BrokerContainer.java`.
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rmqkit.broker.escape.contract import Escaping, Then
from rmqkit.broker.escape.host import EscapeHost
from rmqkit.store.contract import PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import PermName
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqkit.wire.bodies import TopicConfig

DUTY = "escape-inbox"
#: messages that wait in an inbox
LEFT_MAX = 10_000
_MADE = (RETRY_PREFIX, DLQ_PREFIX)


class Local:
    def __init__(self, broker: EscapeHost) -> None:
        self._broker = broker
        #: messages put, by broker name
        self.put_counts: dict[str, int] = {}
        self.why = ""

    def put(self, message: Escaping, then: Then) -> None:
        why = "no other broker lives in this process"
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
        return {
            "escapeWhy": self.why,
            "escapedTo": msgspec.json.encode(dict(sorted(self.put_counts.items()))).decode(),
        }

    def stop(self) -> None:
        pass

    def _answered(self, name: str, then: Then, status: PutStatus) -> None:
        # It has the message and no slave at hand: asking again would only store it again.
        if status is PutStatus.SLAVE_NOT_AVAILABLE:
            status = PutStatus.PUT_OK
        if status is PutStatus.PUT_OK:
            self.why = ""
            self.put_counts[name] = self.put_counts.get(name, 0) + 1
        else:
            self.why = f"{name} in this process: {status.name}"
        then(status)


def refusal(neighbour: EscapeHost, broker: EscapeHost, topic: str) -> str:
    """Why `neighbour` cannot take a message of that topic from `broker`; "" when it can."""
    name = neighbour.name
    if neighbour.config.identity.broker_name == broker.config.identity.broker_name or not neighbour.role.is_master:
        return f"{name} in this process is no master of another group"
    if not neighbour.serving or neighbour.stopping:
        return f"{name} in this process does not serve"
    if neighbour.send_blocked:
        return f"{name} in this process: {neighbour.send_blocked}"
    if len(neighbour.escape.inbox) >= LEFT_MAX:
        return f"{name} in this process has {LEFT_MAX} messages of its neighbours to store"
    config = neighbour.topics.get(topic)
    if config is None:
        return "" if topic.startswith(_MADE) else f"{name} in this process has no topic {topic}"
    is_open = config.perm & PermName.PERM_WRITE and config.write_queue_nums > 0
    return "" if is_open else f"{name} in this process: topic {topic} may not be written"


class _Left:
    """A message on its way into this broker's store."""

    __slots__ = ("asker", "is_ended", "message", "then")

    def __init__(self, message: Escaping, asker: EscapeHost, then: Then) -> None:
        self.message = message
        self.asker = asker
        self.then = then
        self.is_ended = False


class Inbox:
    """Messages that brokers of this process leave for this one, and the answers to those that it left at them."""

    def __init__(self, broker: EscapeHost) -> None:
        self._broker = broker
        self._left: list[_Left] = []
        self._appended: dict[_Left, None] = {}
        self._told: list[tuple[Then, PutStatus]] = []
        broker.duties.add(DUTY, self._run, None)

    def __len__(self) -> int:
        return len(self._left) + len(self._appended)

    def leave(self, message: Escaping, asker: EscapeHost, then: Then) -> None:
        """For another broker, in its turn. `then` is called in one of its turns."""
        self._left.append(_Left(message, asker, then))
        self._wake()

    def tell(self, then: Then, status: PutStatus) -> None:
        """For the broker where a message was left."""
        self._told.append((then, status))
        self._wake()

    def stop(self) -> None:
        """Answer every broker that waits for this one; store nothing more."""
        left, self._left = self._left, []
        for each in left:
            self._end(each, PutStatus.SERVICE_NOT_AVAILABLE)
        for each in list(self._appended):
            self._end(each, PutStatus.UNKNOWN_ERROR)

    def _wake(self) -> None:
        self._broker.duties.wake(DUTY, 0)

    def _run(self, now_ms: int) -> None:
        told, self._told = self._told, []
        for then, status in told:
            then(status)
        left, self._left = self._left, []
        for each in left:
            self._store(each)

    def _store(self, each: _Left) -> None:
        broker = self._broker
        put, level = each.message.put, each.message.level
        if refusal(broker, each.asker, put.topic):
            # It could when the message was left.
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
        else:
            result = broker.store.append(put)
        broker.puts.await_own(SCHEDULE_TOPIC if level else put.topic, result, partial(self._end, each), copies=True)

    def _saved(self, each: _Left) -> None:
        """The topic was new: in its file now, or it could not be saved."""
        if each.is_ended:
            return  # the broker has stopped meanwhile
        del self._appended[each]
        if each.message.put.topic in self._broker.topics.unsaved or self._broker.stopping:
            self._end(each, PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._left.append(each)
            self._wake()

    def _topic(self, topic: str) -> "TopicConfig":
        topics = self._broker.topics
        config = topics.get(topic)
        return topics.create_system(topic, 1, PermName.PERM_WRITE | PermName.PERM_READ) if config is None else config

    def _end(self, each: _Left, status: PutStatus) -> None:
        self._appended.pop(each, None)
        if not each.is_ended:
            each.is_ended = True
            each.asker.escape.inbox.tell(each.then, status)
