"""`rmqkit consume`: reads the messages of a topic.

Without a group it is a reader that leaves no trace. It takes the queues as they are at its start,
reads each from `--from` to `--to` (by default their ends), commits nothing, and ends when it has
read them. With `--follow` it continues.

With a group it is a member of that group. It shares the queues with the other members and starts at
the group's offsets (at `--from` where there are none). It commits what it has printed: each batch
is flushed before the next poll, so messages that a closed pipe or Ctrl-C cut off are redelivered.

With `--pop` it shares every queue of the group with the other members (`rmqkit.cli.pop.consume`).

`--filter` selects tags if it looks like tags (`A || B`; a single word is a tag). Otherwise it is an
expression over properties, which the broker evaluates.

If queues cannot be read, the command ends with exit code 3 and the reason after `--timeout` without
progress (`ReadTimeout`). With `--follow` silence is no failure: only errors count, and only if
`--timeout` is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, known_topic, readable
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic, find_namesrv
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit.cli.times import parse_time
from rmqkit.errors import ClientError, NoRoute

if TYPE_CHECKING:
    from rmqkit import MessageExt, MessageQueue, PullConsumer

POLL_MS = 500
BATCH = 32
#: seconds that a member waits for queues before it reports that it got none
SHARE_S = 10.0
#: longer than a slave of `cluster up` needs to act for a stalled master (16 s)
TIMEOUT_S = 20.0
#: words of `--from`, as consumers name them
BEGINS = {"earliest": "first", "latest": "last"}

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Group = Annotated[str | None, typer.Option("--group", "-g", help="Consume as a member of this group, and commit.")]
From = Annotated[
    str,
    typer.Option(
        "--from", metavar="earliest|latest|OFFSET|TIME", help="Where to begin; TIME: 2026-01-31T12:30, or 10m (ago)."
    ),
]
To = Annotated[str | None, typer.Option("--to", metavar="OFFSET|TIME", help="Where to end, not including this message.")]
Max = Annotated[int | None, typer.Option("--max", min=1, help="End after this many messages.")]
Follow = Annotated[bool, typer.Option("--follow", help="Continue with new messages until Ctrl-C.")]
Filter = Annotated[
    str,
    typer.Option(
        "--filter",
        metavar="'A || B'|SQL",
        help='Only messages with one of these tags; with blanks or comparisons: by properties, such as "a > 1".',
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="line|body|json|TEMPLATE",
        help="Format of a message: line on a terminal, body elsewhere; or a template such as '{keys} {body}'.",
    ),
]
Pop = Annotated[bool, typer.Option("--pop", help="Pop: share every queue with the group's other members, and ack.")]
Invisible = Annotated[
    str | None,
    typer.Option("--invisible", metavar="TIME", help="With --pop: how long messages are invisible to other members (60s)."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        help=f"End with exit code 3 if no queue could be read for this many seconds ({TIMEOUT_S:g}; with --follow: never).",
    ),
]


class Place:
    """The value of `--from` or `--to`: an end of the queue, an offset, or a time."""

    def __init__(self, option: str, text: str, words: Iterable[str]) -> None:
        self.word = text if text in words else ""
        self.offset = int(text) if text.isdigit() and len(text) < 13 else None
        self.time_ms = None if self.word or self.offset is not None else parse_time(text, time.time_ns() // 1_000_000)
        if not self.word and self.offset is None and self.time_ms is None:
            expected = ", ".join([*words, "an offset", "a time such as 2026-01-31T12:30 or 10m"])
            raise UsageError(f"{option} {text}: must be {expected}")

    def in_queue(self, consumer: PullConsumer, queue: MessageQueue, first: int, end: int) -> int:
        """Return the offset in a queue with messages from `first` up to, not including, `end`."""
        if self.time_ms is not None:
            offset = consumer.offset_for_time(queue, self.time_ms)
        else:
            offset = {"earliest": first, "latest": end}.get(self.word, self.offset or 0)
        return max(first, min(offset, end))


@app.command()
def consume(
    topic: Topic,
    group: Group = None,
    begin: From = "earliest",
    to: To = None,
    most: Max = None,
    follow: Follow = False,
    tags: Filter = "*",
    format: Format = None,
    timeout: Timeout = None,
    pop: Pop = False,
    invisible: Invisible = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Read the messages of a topic.

    Without --group: begins at the earliest message, commits nothing, and ends when caught up. With
    --group: continues at the offsets of the group. With --pop as well: ends after 3 s without a
    message.
    """
    from rmqkit.cli.data.message_output import printer, tolerant

    start = Place("--from", begin, ("earliest", "latest"))
    end = Place("--to", to, ()) if to is not None else None
    check_together(group, start, end, follow)
    if pop and timeout is not None:
        raise UsageError("--timeout and --pop exclude each other: the broker has the queues")
    if invisible is not None and not pop:
        raise UsageError("--invisible needs --pop")
    show = tolerant(printer("json" if json else format or ("line" if output.on_terminal() else "body")))
    addresses = find_namesrv(namesrv)
    sink = Sink(show, most)
    try:
        if pop:
            take_pops(addresses, topic, group, start, follow, tags, sink, invisible)
        elif group is None:
            read(addresses, topic, start, end, follow, tags, sink, timeout)
        else:
            take_part(addresses, topic, group, start, follow, tags, sink, timeout)
    except NoRoute:
        with admin_of(addresses) as admin, known_topic(admin, topic):
            raise
    if sys.stderr.isatty():
        output.note(f"{output.count_text(sink.count, 'message')}")
    if sink.unreadable:
        raise Failed(f"{sink.unreadable} messages could not be read")


def check_together(group: str | None, start: Place, end: Place | None, follow: bool) -> None:
    if end is not None and follow:
        raise UsageError("--to and --follow exclude each other")
    if group is not None and (end is not None or start.offset is not None):
        raise UsageError(
            "a group continues at its own offsets: use --to and offsets without --group, or `rmqkit offset set`"
        )


def are_tags(expression: str) -> bool:
    """Return whether a filter is a list of tags, `A || B`; everything else is SQL92.

    Tags are words without blanks, quotes, parentheses or comparisons, joined by `||`.
    """
    parts = [part.strip() for part in expression.split("||")]
    return not any(char in part for part in parts for char in " \t\n=<>'\"()")


def wanted_tags(expression: str) -> frozenset[str] | None:
    """Return the tags of `A || B`, None for all."""
    found = frozenset(filter(None, (part.strip() for part in expression.split("||"))))
    return None if not found or "*" in found else found


@dataclass
class Sink:
    """Prints and counts messages, up to `most` of them."""

    show: Callable[[MessageExt], bool]
    most: int | None
    count: int = 0
    unreadable: int = 0

    @property
    def room(self) -> int:
        """The number of messages to request next; 0 at the end."""
        return BATCH if self.most is None else min(BATCH, self.most - self.count)

    def take(self, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            if not self.show(message):
                self.unreadable += 1
            self.count += 1
        sys.stdout.flush()


class ReadTimeout:
    """Ends a command whose queues cannot be read.

    Without `follow` the reason is no progress, with `follow` errors of all queues.
    """

    def __init__(self, consumer: PullConsumer, follow: bool, timeout_s: float | None) -> None:
        self._consumer = consumer
        self._follow = follow
        self._timeout_s = timeout_s if timeout_s is not None or follow else TIMEOUT_S
        self._positions: dict[MessageQueue, int] = {}
        self._read_s = time.monotonic()

    def check(self, queues: Collection[MessageQueue], positions: dict[MessageQueue, int]) -> None:
        """Raises Unreachable after the timeout. `queues` are those that still have to be read."""
        now_s = time.monotonic()
        failures = {queue: error for queue, error in self._consumer.failures.items() if queue in queues}
        could_read = len(failures) < len(queues) if self._follow else positions != self._positions
        self._positions = positions
        if could_read or not queues:
            self._read_s = now_s
        elif self._timeout_s is not None and now_s - self._read_s > self._timeout_s:
            names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in sorted(queues))
            why = next(iter(failures.values()), "no answer")
            raise Unreachable(
                f"queues {names} could not be read for {self._timeout_s:g} s: {why};"
                f" see `rmqkit explain {min(queues).broker_name}`"
            )


def positions_of(consumer: PullConsumer, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
    """Return the next offset of each queue, without queues whose broker does not answer."""
    found = {}
    for queue in queues:
        with suppress(ClientError):
            found[queue] = consumer.position(queue)
    return found


def read(
    addresses: str,
    topic: str,
    start: Place,
    end: Place | None,
    follow: bool,
    expression: str,
    sink: Sink,
    timeout_s: float | None,
) -> None:
    from rmqkit import PullConsumer, sql

    tags = wanted_tags(expression) if are_tags(expression) else None
    with PullConsumer(namesrv=addresses) as consumer:
        ends: dict[Any, int] = {}
        begins: dict[Any, int] = {}
        for queue in readable(topic, consumer.queues(topic)):
            first, last = max(0, consumer.offset_min(queue)), consumer.offset_max(queue)
            begins[queue] = start.in_queue(consumer, queue, first, last)
            ends[queue] = end.in_queue(consumer, queue, first, last) if end else last
        left = {queue for queue in begins if follow or begins[queue] < ends[queue]}
        consumer.assign(left, "*" if are_tags(expression) else sql(expression))
        for queue in sorted(left):
            consumer.seek(queue, begins[queue])
        read_timeout = ReadTimeout(consumer, follow, timeout_s)
        while left and sink.room:
            messages = consumer.poll(POLL_MS, BATCH)
            inside = [each for each in messages if follow or each.queue_offset < ends[each.queue]]
            sink.take([each for each in inside if tags is None or each.tags in tags][: sink.room])
            positions = {} if follow else positions_of(consumer, left)
            if not follow and (read_out := {queue for queue in left if positions.get(queue, 0) >= ends[queue]}):
                left -= read_out
                consumer.pause(read_out)
            read_timeout.check(left, positions)


def take_part(
    addresses: str,
    topic: str,
    group: str,
    start: Place,
    follow: bool,
    tags: str,
    sink: Sink,
    timeout_s: float | None,
) -> None:
    from rmqkit import PullConsumer, sql

    with PullConsumer(
        group, namesrv=addresses, consume_from=BEGINS.get(start.word, "timestamp"), consume_timestamp_ms=start.time_ms
    ) as consumer:
        consumer.subscribe(topic, tags if are_tags(tags) else sql(tags))
        ends = {queue: consumer.offset_max(queue) for queue in readable(topic, consumer.queues(topic))}
        until_s = time.monotonic() + SHARE_S
        read_timeout = ReadTimeout(consumer, follow, timeout_s)
        while sink.room:
            sink.take(consumer.poll(POLL_MS, sink.room))
            mine = [queue for queue in consumer.assignment if queue.topic == topic]
            positions = {} if follow else positions_of(consumer, mine)
            left = [queue for queue in mine if follow or positions.get(queue, -1) < ends.get(queue, 0)]
            if mine and not left:
                return
            read_timeout.check(left, positions)
            if not follow and not mine and time.monotonic() > until_s:
                raise Failed(f"other members of group {group} have all queues of {topic}")


def take_pops(
    addresses: str, topic: str, group: str | None, start: Place, follow: bool, tags: str, sink: Sink, invisible: str | None
) -> None:
    if group is None:
        raise UsageError("--pop needs --group: the broker keeps what a group has in flight")
    if not start.word:
        raise UsageError("--pop takes --from earliest or latest: the broker chooses the messages")
    from rmqkit import sql
    from rmqkit.cli.pop.consume import INVISIBLE, pop_messages

    expression = tags if are_tags(tags) else sql(tags)
    invisible = invisible or INVISIBLE
    pop_messages(addresses, topic, group, BEGINS[start.word], expression, invisible=invisible, follow=follow, sink=sink)
