"""TransactionProducer: sends a message if, and only if, a local transaction commits.

The half message is sent first. The calling thread then runs the local transaction, and its outcome
ends the half. Questions of brokers arrive in the I/O thread; threads of a pool run the check
callback.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rmqkit.api.choices import wall_ms
from rmqkit.api.listener_pool import ListenerPool
from rmqkit.api.log import logger
from rmqkit.api.producer import Producer
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.client.producers.transaction_ends import deliver_end
from rmqkit.client.producers.transactions import (
    TransactionQuestion,
    TransactionResult,
    TransactionState,
    end_of,
    half_of,
    send_end,
)
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.wire import properties as props
from rmqkit.wire.fastjson import MessageQueue

Local = Callable[[Message, Any], TransactionState]
Check = Callable[[MessageExt], TransactionState]

#: questions that wait for a thread; more are dropped, and the broker asks again
QUESTIONS_MAX = 2000
#: how long a closing producer waits for a running check
CLOSE_WAIT_S = 3.0


class TransactionProducer(Producer):
    """Sends messages whose delivery depends on a local transaction, such as a database update.

    A message is delivered if the local transaction commits, and dropped if it rolls back, also if
    the program crashes in between. For that, the outcome must be found in the database: the check
    callback is asked about each transaction whose outcome the broker does not know.

    After a crash:

    - Before the half message is stored: nothing is delivered, and nothing is asked.
    - Between the half message and the local commit: the broker asks, the check callback finds no
      commit and returns ROLLBACK.
    - Between the local commit and the end: the broker asks, the check callback finds the commit
      and returns COMMIT.

    The broker asks `transactionTimeOut` (6 s) after the half message at the earliest, in rounds of
    `transactionCheckInterval` (30 s), and gives up after `transactionCheckMax` (15) questions. It
    asks any producer of the group that is online, so all programs of a group need the same
    callback and the same database. The message may be delivered more than once, like any message.

    Args:
        group: The producer group. It must be the group of the programs that can answer.
        check: Called with a half message (`MessageExt`) without an outcome; returns a
            `TransactionState`. Runs in threads of the producer. If it raises, the error is logged
            and the broker asks again.
        check_threads: Threads that run `check` at most.
        topics: Topics of its transactions. Their brokers can ask from the start, and not only after
            the first send. Name them, so that a restarted program answers for its predecessor.
        **settings: The other arguments of `rmqkit.Producer`.

    Raises:
        ClientError: As in `rmqkit.Producer`.

    Example:
        Send a message if an update is committed:

            from rmqkit import Message, TransactionProducer, TransactionState

            def pay(message, order):
                with database:  # commits, or rolls back and raises
                    database.execute("UPDATE orders SET paid = 1 WHERE id = ?", (order,))
                return TransactionState.COMMIT

            def check(message):
                found = database.execute("SELECT paid FROM orders WHERE id = ?", (message.keys,))
                row = found.fetchone()
                return TransactionState.COMMIT if row and row[0] else TransactionState.ROLLBACK

            with TransactionProducer("payments", check=check) as producer:
                message = Message("paid", b"order 7", keys="7")
                result = producer.send_in_transaction(message, pay, "7")
                print(result.state)
    """

    def __init__(
        self, group: str, *, check: Check, check_threads: int = 1, topics: Sequence[str] = (), **settings: Any
    ) -> None:
        if not callable(check):
            raise ClientError("check must be a function that takes a message and returns a TransactionState")
        self._check_callback = check
        self._watched = tuple(topics)
        self._questions = 0
        self._pool: ListenerPool[TransactionQuestion] = ListenerPool(
            f"rmqkit-check-{group}", max(1, check_threads), self._answer, self._drop
        )
        super().__init__(group, **settings)

    def send_in_transaction(
        self,
        message: Message,
        local: Local,
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send a half message, run the local transaction, and end the half with its outcome.

        `local` runs in the calling thread once the half message is stored safely. If the status of
        that send is not SEND_OK, the half is rolled back and `local` does not run.

        Args:
            message: The message. It may have no delay level.
            local: Called as `local(message, arg)`. Returns a `TransactionState`.
            arg: Passed to `local`.
            queue: Send to this queue of the message's topic.
            timeout_ms: Timeout of the half message's send.

        Returns:
            The outcome, and whether the broker has confirmed it. If not, it asks later.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.
            NoRoute: No broker has the topic.
            SendFailed: The half message was not stored, or it is unknown whether. `local` did not
                run. A half that was stored is asked about: `check` must return ROLLBACK for a
                transaction that it does not find.
            Exception: What `local` raised. The outcome is then UNKNOWN: the broker asks.

        Example:
            result = producer.send_in_transaction(Message("paid", b"order 7", keys="7"), pay, "7")
        """
        if self._io.is_current:
            raise ClientError("send_in_transaction() would wait for its own thread; call it from another one")
        result = self.send_half(message, queue, timeout_ms=timeout_ms).result()
        if not result.is_ok:
            return self.end(result, TransactionState.ROLLBACK, message=message).result()
        state = checked_state(local(message, arg), "the local transaction")
        return self.end(result, state, message=message).result()

    def send_half(
        self, message: Message, queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> "Future[SendResult]":
        """Send only the half message. `end` has to follow.

        Args:
            message: The message. It may have no delay level.
            queue: Send to this queue of the message's topic.
            timeout_ms: Timeout of the send.

        Returns:
            A future of the send's result.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.

        Example:
            sent = producer.send_half(Message("paid", b"order 7")).result()
        """
        outgoing = half_of(self._prepare.message(message, wall_ms()), self.group)
        return self._put(outgoing, queue, None, timeout_ms, self._settings.retry_times_when_send_failed)

    def end(
        self, half: SendResult, state: TransactionState, *, message: Message | None = None
    ) -> "Future[TransactionResult]":
        """Send the outcome of a half message.

        Args:
            half: The result of its send.
            state: The outcome. UNKNOWN sends nothing.
            message: The message, for its tags and keys in the trace (`trace=True`).

        Returns:
            A future of the transaction's result.

        Raises:
            ClientError: The result does not name a half message.

        Example:
            producer.end(sent, TransactionState.COMMIT).result()
        """
        request, future = end_of(self.group, half), Future[TransactionResult]()

        def ended(why: "Future[str]") -> None:
            error = why.exception()
            future.set_result(TransactionResult(half, state, why.result() if error is None else str(error)))

        def send() -> Deferred[str]:
            client = self._io.client
            if self._core is not None and self._core.trace is not None:
                tags, keys = ("", "") if message is None else (message.tags or "", message.keys or "")
                to = client.routes.master(half.queue.broker_name)
                where = "" if to is None else str(to)
                self._core.trace.ended(request, state, where, region_id=half.region_id or "", tags=tags, keys=keys)
            return start(deliver_end(client, half, request, state))

        self._io.run("TransactionProducer", send).add_done_callback(ended)
        return future

    def close(self) -> None:
        """Stop answering questions, wait for pending sends, and close. Safe to call twice."""
        self._io.post(self._unregister)
        self._pool.close(CLOSE_WAIT_S)
        super().close()

    # --- in the I/O thread

    def _begin(self) -> None:
        super()._begin()
        if self._io.ended is None:
            client = self._io.client
            client.checkers[self.group] = self._asked_about
            for topic in self._watched:
                client.routes.watch(topic)
                start(client.routes.find(topic), self._no_route)

    def _no_route(self, error: RmqkitError) -> None:
        logger.warning("group %s: %s; its brokers cannot ask about transactions yet", self.group, error)

    def _unregister(self) -> None:
        checkers = self._io.client.checkers
        if checkers.get(self.group) == self._asked_about:
            del checkers[self.group]

    def _asked_about(self, question: TransactionQuestion) -> None:
        if self._questions >= QUESTIONS_MAX:
            logger.warning("group %s: %d questions about transactions wait; one is dropped", self.group, QUESTIONS_MAX)
            return
        self._questions += 1
        self._pool.submit(question)

    # --- in a thread of the pool

    def _answer(self, question: TransactionQuestion) -> None:
        state = TransactionState.UNKNOWN
        try:
            state = checked_state(self._check_callback(question.message), "the check callback")
        except Exception:
            logger.exception("group %s: the check of message %s failed", self.group, question.message.msg_id)
        self._io.post(lambda: self._send_answer(question, state))

    def _send_answer(self, question: TransactionQuestion, state: TransactionState) -> None:
        self._questions -= 1
        if self._io.ended is not None:
            return
        if self._core is not None and self._core.trace is not None:
            half = question.message
            region_id = half.properties.get(props.PROPERTY_MSG_REGION) or ""
            tags, keys = half.tags or "", half.keys or ""
            self._core.trace.ended(question.end, state, str(question.address), region_id=region_id, tags=tags, keys=keys)
        sent = start(send_end(self._io.client.remoting, question.address, question.end, state))
        sent.when_done(lambda: self._answered(question, state, sent.result()))

    def _answered(self, question: TransactionQuestion, state: TransactionState, why: str) -> None:
        """The answer to a question has ended. `why`: why the broker did not confirm it, or ""."""

    def _drop(self, question: TransactionQuestion) -> None:
        """The producer closes: another producer of the group is asked in the next round."""


def checked_state(state: object, what: str) -> TransactionState:
    """Return what a callback returned. Raises ClientError if it is no TransactionState."""
    if not isinstance(state, TransactionState):
        raise ClientError(f"{what} must return a TransactionState, not {state!r}")
    return state
