"""Java's JSON as RocketMQ's peers write it (fastjson 1.2 and 2): one tolerant reader and one writer.

Two habits of fastjson are not JSON: integer keys stand without quotes, `{0:"a"}`, and a map keyed by objects has the
objects as they are, `{{"brokerName":"b","queueId":1,"topic":"T"}:6}`.

Reading: msgspec reads the text as it is. Only when it refuses, one pass over the text puts both kinds of keys into
quotes and msgspec reads it again. A key is therefore always text: a number's digits, or the text of the object as it
was written (which is the form in which fastjson 1.2 accepts such a key as strict JSON too); `read_queue` makes a queue
of the latter. An `"@type"` is a name like any other: it never chooses a class.

Writing: names come out in the order of a struct's fields (ours stand sorted, as Java sorts those of a bean), None is left
out, and there is no whitespace (Go's client cuts such text by hand). Maps keyed by a `MessageQueue` get the raw form,
the only one that clients of 5.5 read. Integer keys are quoted, which all clients read, unless asked for otherwise.
`pretty` is the form of the files in a store's `config` folder: a tab for each level, integer keys without quotes.

Source: `remoting/.../protocol/RemotingSerializable.java`; behaviour seen by running fastjson 1.2.83 and 2.0.59.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from rmqkit.errors import RemoteProtocolError

TEXT_SIZE_MAX = 16 * 1024 * 1024

T = TypeVar("T")

# A string, closed or not: an open one is taken to the end, so that no text is scanned more than twice.
_STRING = rb'"(?:[^"\\]++|\\.)*+"?'
# A string; an object without objects or lists in it that stands where a key stands; a number that does.
_TOKENS = re.compile(
    rb"(?P<string>" + _STRING + rb")"
    rb"|(?P<object>\{(?:[^\[\]{}\"]++|" + _STRING + rb")*+\})(?=\s*+:)"
    rb"|(?<=[{,\s])(?P<number>-?[0-9]++)(?=\s*+:)",
    re.DOTALL,
)
_SPACE = re.compile(rb"(" + _STRING + rb")|\s++", re.DOTALL)


class MessageQueue(NamedTuple):
    """A queue of a topic at a broker. Sorts as in Java: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


_QUEUE_FIELDS = {"brokerName", "queueId", "topic"}
_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def _decoder(schema: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(schema, strict=False)


def loads(text: bytes | str, *, size_max: int = TEXT_SIZE_MAX) -> Any:
    """Any value as dicts with text keys, lists and scalars. Raises RemoteProtocolError."""
    return load_as(Any, text, size_max=size_max)


def load_as(schema: type[T], text: bytes | str, *, size_max: int = TEXT_SIZE_MAX, has_queues: bool = False) -> T:
    """A value of a msgspec type; numbers may be text, null counts as absent. Raises RemoteProtocolError naming the type.

    With `has_queues` the type may have `MessageQueue`s as keys and as items of lists.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > size_max:
        raise RemoteProtocolError(f"JSON of {len(data)} bytes, more than {size_max}")
    try:
        if not has_queues:
            try:
                read: T = _decoder(cast(Any, schema)).decode(data)
                return read
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                pass
        plain = _tidied(_decoder(Any).decode(to_strict(data)), has_queues)
        return msgspec.convert(plain, schema, strict=False)
    except RecursionError:
        raise RemoteProtocolError(f"{_name(schema)}: nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"{_name(schema)}: {error}") from None


def _name(schema: Any) -> str:
    return "JSON" if schema is Any else getattr(schema, "__name__", str(schema))


def _tidied(value: Any, has_queues: bool) -> Any:
    """Without what is null; with `has_queues`, objects that are queues and keys that are their text become queues."""
    if isinstance(value, dict):
        if has_queues and value.keys() == _QUEUE_FIELDS:
            return value["topic"], value["brokerName"], value["queueId"]
        return {
            read_queue(key) if has_queues and key.startswith("{") else key: _tidied(item, has_queues)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [_tidied(item, has_queues) for item in value]
    return value


def to_strict(data: bytes) -> bytes:
    """The text with its integer and object keys in quotes; anything else stays, right or wrong."""
    return _TOKENS.sub(_quoted, data)


def _quoted(match: re.Match[bytes]) -> bytes:
    key = match["object"]
    if key is not None:
        bare = _SPACE.sub(rb"\1", key)
        return b'"' + bare.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    if match["number"] is not None:
        return b'"' + match["number"] + b'"'
    return match["string"]


def read_queue(key: str) -> MessageQueue:
    """The queue whose object is a key's text. Raises RemoteProtocolError."""
    return load_as(MessageQueue, key, has_queues=True)


def dumps(value: Any, *, unquoted_int_keys: bool = False) -> bytes:
    """Compact text. Takes msgspec structs, dicts (keys: text or int), lists, sets and scalars.

    Queues, as keys and as items, only inside a struct that says `HAS_QUEUES`.
    """
    if not unquoted_int_keys and not getattr(value, "HAS_QUEUES", False):
        data = _encode(value)
        if b":null" not in data:
            return data
    out: list[str] = []
    _write(msgspec.to_builtins(value), out, "" if unquoted_int_keys else '"')
    return "".join(out).encode()


def pretty(value: Any) -> str:
    """Text of a config file, without a line end after it."""
    out: list[str] = []
    _write_pretty(msgspec.to_builtins(value), out, "\n")
    return "".join(out)


def _write(value: Any, out: list[str], quote: str) -> None:
    if isinstance(value, dict):
        mark = "{"
        for key, item in _items(value):
            if item is not None:
                out += (mark, _key(key, quote), ":")
                _write(item, out, quote)
                mark = ","
        out.append("{}" if mark == "{" else "}")
    elif isinstance(value, tuple):
        out.append(_queue(value, ""))
    elif isinstance(value, list):
        mark = "["
        for item in value:
            out.append(mark)
            _write(item, out, quote)
            mark = ","
        out.append("[]" if mark == "[" else "]")
    else:
        out.append(_encode(value).decode())


def _write_pretty(value: Any, out: list[str], line: str) -> None:
    deeper = line + "\t"
    if isinstance(value, dict):
        mark = "{"
        for key, item in _items(value):
            if item.__class__ is int:
                out.append(f"{mark}{deeper}{_key(key, '', deeper)}:{item}")
                mark = ","
            elif item is not None:
                out += (mark, deeper, _key(key, "", deeper), ":")
                _write_pretty(item, out, deeper)
                mark = ","
        out.append("{}" if mark == "{" else line + "}")
    elif isinstance(value, tuple):
        out.append(_queue(value, line))
    elif isinstance(value, list):
        mark = "["
        for item in value:
            out += (mark, deeper)
            _write_pretty(item, out, deeper)
            mark = ","
        out.append("[]" if mark == "[" else line + "]")
    else:
        out.append(_encode(value).decode())


def _items(value: dict[Any, Any]) -> Any:
    """In order of their keys when those are numbers or queues, so that text does not depend on chance."""
    return sorted(value.items()) if value and not isinstance(next(iter(value)), str) else value.items()


def _key(key: Any, quote: str, line: str = "") -> str:
    if isinstance(key, str):
        return _encode(key).decode()
    if isinstance(key, int):
        return f"{quote}{key}{quote}"
    return _queue(key, line)


def _queue(queue: tuple[str, str, int], line: str) -> str:
    """`msgspec.to_builtins` makes plain tuples of queues, and of nothing else that is written here."""
    topic, broker_name, queue_id = queue
    deeper = line + "\t" if line else ""
    fields = (
        f'"brokerName":{_encode(broker_name).decode()}',
        f'"queueId":{queue_id}',
        f'"topic":{_encode(topic).decode()}',
    )
    return "{" + deeper + f",{deeper}".join(fields) + line + "}"
