"""`rmqkit send`: sends one message, the lines of a file or of stdin, or generated messages.

Messages are sent as fast as the broker answers (or at `--rate`), with up to `WINDOW` in flight. A
second thread takes the results in order and prints them, so that a slow input (`tail -f`) does not
delay them. Each message ends in one of three ways: stored, not stored, or unknown. Unknown means
that its answer was lost, and it may have been stored.
"""

import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Annotated, Any, BinaryIO

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, choose_queue, create_on_every_group, groups_instead
from rmqkit.cli.cluster_lookup import Json, Namesrv, find_namesrv
from rmqkit.cli.complete import delay_levels, topics
from rmqkit.cli.data.delays import delay_fields, parse_at, parse_delay
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit.errors import ClientError, NoRoute, PeerUnreachable, SendFailed

WINDOW = 1000
FAILURES_SHOWN = 10
LETTERS = b"abcdefghijklmnopqrstuvwxyz"

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Created by the first send, on every group that allows it.", autocompletion=topics
    ),
]
Body = Annotated[str | None, typer.Argument(metavar="BODY", help="The message; - sends each line of stdin.")]
File = Annotated[str | None, typer.Option("--file", "-f", help="Send each line of a file.")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="A key to find the message by; may be repeated.")]
Tag = Annotated[str | None, typer.Option("--tag", help="The tag that consumers filter by.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A user property; may be repeated.")
]
ToQueue = Annotated[str | None, typer.Option("--queue", metavar="[BROKER:]ID", help="Send to this queue only.")]
OrderingKey = Annotated[str | None, typer.Option("--ordering-key", help="Messages with the same key go to the same queue.")]
Delay = Annotated[
    str | None,
    typer.Option(
        "--delay",
        metavar="90s|LEVEL",
        help="Deliver after this time, or at a delay level of the brokers (messageDelayLevel).",
        autocompletion=delay_levels,
    ),
]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Deliver at this time, such as '2026-12-01 09:00'.")]
Compress = Annotated[
    str | None, typer.Option("--compress", metavar="zlib|lz4|zstd", help="Compress bodies, however small they are.")
]
Count = Annotated[int | None, typer.Option("--count", min=1, help="Number of messages to send.")]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages per second.")]
Size = Annotated[int | None, typer.Option("--size", min=1, help="Generate bodies of this many bytes.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Timeout of a send in seconds.")]


@app.command()
def send(
    topic: Topic,
    body: Body = None,
    file: File = None,
    key: Keys = None,
    tag: Tag = None,
    properties: Properties = None,
    to_queue: ToQueue = None,
    ordering_key: OrderingKey = None,
    delay: Delay = None,
    at: At = None,
    compress: Compress = None,
    count: Count = None,
    rate: Rate = None,
    size: Size = None,
    timeout: Timeout = 3.0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send messages to a topic.

    Exit code 1 unless every message is known to be stored.
    """
    bodies = bodies_of(body, file, count, size)
    user_properties = parse_properties(properties or [])
    if delay is not None and at is not None:
        raise UsageError("--delay and --at exclude each other")
    wait = parse_delay(delay) if delay is not None else None
    due: dict[str, Any] = {} if at is None else {"deliver_at": parse_at(at, time.time_ns() // 1_000_000)}
    compressed = compression_of(compress)
    addresses = find_namesrv(namesrv)
    if wait is not None:
        due = delay_fields(wait, addresses)
    groups = create_on_every_group(addresses, topic)
    if groups:
        output.note(f"topic {topic} is new: created on {', '.join(groups)}")
    from rmqkit import Message, Producer

    with Producer(
        "rmqkit-cli", namesrv=addresses, send_msg_timeout_ms=round(timeout * 1000), pending_max=WINDOW, **compressed
    ) as producer:
        chosen = choose_queue(producer.queues(topic), to_queue) if to_queue else None

        def start(each: bytes) -> Future[Any]:
            message = Message(topic, each, keys=key or None, tags=tag, properties=user_properties, **due)
            return producer.send_async(message, chosen, ordering_key=ordering_key)

        report = Report(topic, json, total=(count or 1) if file is None and body != "-" else None)
        report.run(paced(bodies, rate), start)
    try:
        report.finish()
    except Failed as error:
        raise Failed(f"{error}{advice_on(topic, addresses, report.error)}") from None


def advice_on(topic: str, namesrv: str, error: ClientError | None) -> str:
    """Return what to do if no group of the topic has a master but another group has.

    The text begins with "; ". It is empty if there is no advice.
    """
    if isinstance(error, NoRoute):
        with suppress(ClientError), admin_of(namesrv) as admin:
            if others := groups_instead(admin, topic):
                return f"; `rmqkit topic create {topic} --broker {others[0]}` creates it there as well"
    return ""


def bodies_of(body: str | None, file: str | None, count: int | None, size: int | None) -> Iterator[bytes]:
    """Return the bodies to send. Raises UsageError if the source is missing or ambiguous."""
    sources = [name for name, given in (("a BODY", body is not None), ("--file", file), ("--size", size)) if given]
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} exclude each other")
    if (file is not None or body == "-") and count is not None:
        raise UsageError("--count needs a BODY or --size; a file sends one message per line")
    if body == "-":
        return lines_of(sys.stdin.buffer)
    if body is not None:
        return (body.encode() for _ in range(count or 1))
    if file is not None:
        try:
            return lines_of(open(file, "rb"))  # closed by the generator
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
    if size is None and count is None:
        raise UsageError("nothing to send: give a BODY, - for the lines of stdin, --file, --count or --size")
    return (generated_body(number, size) for number in range(1, (count or 1) + 1))


def compression_of(name: str | None) -> dict[str, Any]:
    """Return the producer's settings that compress every body; {} without `--compress`.

    Raises UsageError.
    """
    if name is None:
        return {}
    from rmqkit.client.producers.compression import compression

    try:
        compression(name)
    except ClientError as error:
        raise UsageError(f"--compress {name}: {error}") from None
    return {"compress_type": name, "compress_msg_body_over": 1}


def lines_of(source: BinaryIO) -> Iterator[bytes]:
    """Return the lines without their ends.

    Empty lines are skipped: RocketMQ accepts no empty body.
    """
    with source:
        for line in source:
            if stripped := line.rstrip(b"\r\n"):
                yield stripped


def generated_body(number: int, size: int | None) -> bytes:
    text = b"message %d" % number
    if size is None:
        return text
    filling = b" " + LETTERS * (size // len(LETTERS) + 1)
    return (text + filling)[:size]


def paced(bodies: Iterator[bytes], rate: float | None) -> Iterator[bytes]:
    """Yield the bodies, each at its time."""
    began_s = time.monotonic()
    for number, body in enumerate(bodies):
        if rate:
            wait_s = began_s + number / rate - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
        yield body


def parse_properties(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--property {pair}: must be NAME=VALUE")
        found[name] = value
    return found


class Report:
    """Takes the results of sends in order, prints and counts them."""

    def __init__(self, topic: str, json: bool, total: int | None) -> None:
        self._topic = topic
        self._json = json
        self._total = total
        self._results: queue.Queue[Future[Any] | None] = queue.Queue(WINDOW)
        self._reader_gone = threading.Event()
        self._began_s = time.monotonic()
        self._progress = output.ProgressBar("sent", total)
        self._last: Any = None
        self.error: ClientError | None = None
        self.stored = self.unsafe = self.failed = self.unknown = 0

    @property
    def ended(self) -> int:
        return self.stored + self.unsafe + self.failed + self.unknown

    def run(self, bodies: Iterator[bytes], start: Any) -> None:
        """Send all bodies. If interrupted, wait for the messages in flight and count them."""
        thread = threading.Thread(target=self._take, name="results")
        thread.start()
        try:
            for body in bodies:
                if self._reader_gone.is_set():
                    break
                self._results.put(start(body))
        except BaseException:
            self._results.put(None)
            thread.join()
            self._progress.clear()
            if self.ended:
                output.note(self.summary())
            raise
        self._results.put(None)
        thread.join()
        self._progress.clear()
        if self._reader_gone.is_set():
            raise BrokenPipeError

    def _take(self) -> None:
        while (future := self._results.get()) is not None:
            with suppress(ClientError):
                future.exception()  # wait only; _ended handles the error
            self._ended(future)
            self._progress.show(self.ended)

    def _ended(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None and not isinstance(error, ClientError):
            raise error
        if error is None:
            self._last = future.result()
            if self._last.is_ok:
                self.stored += 1
            else:
                self.unsafe += 1
        else:
            self.error = error
            if error.maybe_stored:
                self.unknown += 1
            else:
                self.failed += 1
        with suppress(BrokenPipeError):
            if self._json:
                self._print_json(future, error)
            elif error is not None and self.failed + self.unknown <= FAILURES_SHOWN and self._total != 1:
                self._progress.clear()
                output.note(f"message {self.ended}: {in_words(error)}")
            return
        self._reader_gone.set()

    def _print_json(self, future: Future[Any], error: ClientError | None) -> None:
        if error is None:
            result = future.result()
            place = result.queue
            said = {
                "n": self.ended,
                "status": str(result.status),
                "topic": place.topic,
                "broker_name": place.broker_name,
                "queue_id": place.queue_id,
                "queue_offset": result.queue_offset,
                "msg_id": result.msg_id,
                "offset_msg_id": result.offset_msg_id,
            }
            if result.recall_handle is not None:
                said["recall_handle"] = result.recall_handle
        else:
            status = "UNKNOWN" if error.maybe_stored else "FAILED"
            said = {"n": self.ended, "status": status, "topic": self._topic, "error": str(error), "code": error.code}
        output.line(said)

    def summary(self) -> str:
        took_s = max(time.monotonic() - self._began_s, 1e-6)
        parts = [f"{self.stored} sent"]
        parts += [f"{self.unsafe} stored but less safely than asked"] if self.unsafe else []
        parts += [f"{self.unknown} unknown (may have been stored)"] if self.unknown else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return f"{', '.join(parts)} in {took_s:.1f} s ({self.ended / took_s:.0f} a second)"

    def finish(self) -> None:
        """Print the summary.

        Raises Failed or Unreachable if not every message was stored safely.
        """
        single = self.ended == 1
        if not self._json and single and self._last is not None:
            place = self._last.queue
            print(
                f"{self._last.status}: {place.topic} {place.broker_name}:{place.queue_id}"
                f" offset {self._last.queue_offset}, id {self._last.msg_id}"
            )
            if self._last.recall_handle is not None:
                print(f"to recall it: rmqkit message recall {self._last.recall_handle}")
        elif not self._json and not single and self.ended:
            print(self.summary())
        elif self.ended == 0:
            output.note("nothing was sent: the input has no lines")
        elif not single:
            output.note(self.summary())
        if self.ended == self.stored:
            return
        error = self.error
        if isinstance(error, PeerUnreachable) and not self.stored:
            raise Unreachable(str(error))
        if single and error is not None:
            raise Failed(in_words(error))
        raise Failed("")


def in_words(error: ClientError) -> str:
    if error.maybe_stored:
        return f"unknown, it may have been stored: {error}"
    return f"not sent: {error}" if isinstance(error, SendFailed) else str(error)
