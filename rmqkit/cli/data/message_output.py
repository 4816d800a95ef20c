"""Prints received messages in the formats of `--format`.

line    queue, offset, time, keys, tag and body; control characters are escaped
body    the bytes of the body and a line end
json    one object per line; a body that is not UTF-8 is `body_base64`
{...}   a template of the fields below, such as "{queue_offset} {keys} {body}"
"""

from __future__ import annotations

import base64
import string
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmqkit.cli import output
from rmqkit.cli.errors import UsageError
from rmqkit.cli.times import show_time
from rmqkit.errors import RmqkitError
from rmqkit.suggestions import suggest

if TYPE_CHECKING:
    from rmqkit import MessageExt

FORMATS = ("line", "body", "json")
#: name of a field -> attribute of `MessageExt`
FIELDS = {
    "topic": "topic",
    "broker_name": "broker_name",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "msg_id": "msg_id",
    "offset_msg_id": "offset_msg_id",
    "keys": "keys",
    "tags": "tags",
    "properties": "properties",
    "born_ms": "born_timestamp_ms",
    "store_ms": "store_timestamp_ms",
    "born_host": "born_host",
    "store_host": "store_host",
    "reconsume_times": "reconsume_times",
    "body": "body",
}


def fields_of(message: MessageExt) -> dict[str, Any]:
    """Return the fields of a message. Raises RmqkitError if its body cannot be decompressed."""
    fields: dict[str, Any] = {name: getattr(message, own) for name, own in FIELDS.items() if name != "body"}
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return fields


def printer(format: str) -> Callable[[MessageExt], None]:
    """Return the function that prints one message to stdout, unflushed. Raises UsageError."""
    if "{" in format:
        return _template(format)
    table = {"line": _print_line, "body": _print_body, "json": _print_json}
    if format not in table:
        raise UsageError(f"--format {format}: must be {', '.join(FORMATS)} or a template such as '{{keys}} {{body}}'")
    return table[format]


def _print_json(message: MessageExt) -> None:
    sys.stdout.write(output.dumps(fields_of(message)) + "\n")


def _print_body(message: MessageExt) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(message.body + b"\n")


def _print_line(message: MessageExt) -> None:
    words = [f"{message.broker_name}:{message.queue_id}", f"{message.queue_offset}", show_time(message.store_timestamp_ms)]
    words += [f"keys={message.keys}"] if message.keys else []
    words += [f"tag={message.tags}"] if message.tags else []
    sys.stdout.write("  ".join([*words, visible(message.body)]) + "\n")


def visible(body: bytes) -> str:
    """Return a body as text in which every unprintable character is escaped."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _template(format: str) -> Callable[[MessageExt], None]:
    try:
        names = [name for _text, name, _spec, _conversion in string.Formatter().parse(format) if name is not None]
    except ValueError as error:
        raise UsageError(f"--format {format}: {error}") from None
    for name in names:
        if name not in FIELDS:
            raise UsageError(f"--format: unknown field {name}{suggest(name, FIELDS, 'there are {known}')}")

    def show(message: MessageExt) -> None:
        fields = fields_of(message)
        fields.setdefault("body", fields.get("body_base64"))
        sys.stdout.write(format.format_map({key: "" if value is None else value for key, value in fields.items()}) + "\n")

    return show


def tolerant(show: Callable[[MessageExt], None]) -> Callable[[MessageExt], bool]:
    """Return a function that prints a message, or notes on stderr why its body cannot be read.

    It returns whether the message was printed.
    """

    def shown(message: MessageExt) -> bool:
        try:
            show(message)
        except RmqkitError as error:
            output.note(f"{message.broker_name}:{message.queue_id} {message.queue_offset}: {error}")
            return False
        return True

    return shown
