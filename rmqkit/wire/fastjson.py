"""Reader and writer for the JSON of RocketMQ's peers (fastjson 1.2 and 2).

fastjson deviates from JSON in two ways:

- integer keys have no quotes: `{0:"a"}`;
- the keys of a map may be objects: `{{"brokerName":"b","queueId":1,"topic":"T"}:6}`.

Reading: msgspec decodes the text unchanged. Only if that fails, `to_strict` puts both kinds of keys
into quotes in one pass and msgspec decodes the result. So a key is always text: the digits of a
number, or the text of an object (fastjson 1.2 accepts such a quoted object as a key, too).
`read_queue` turns the latter into a queue. `"@type"` is treated as an ordinary name: it never
selects a class.

Writing:

- Names have the order of the struct's fields. Our structs sort their fields by wire name, as Java
  sorts those of a bean.
- None is left out.
- There is no whitespace, since the Go client splits such text by hand.
- Maps keyed by a `MessageQueue` use the raw form, the only one that clients of 5.5 read.
- Integer keys are quoted, which all clients read, unless `unquoted_int_keys` is set.

`pretty` writes the format of the files in a store's `config` folder: one tab per level, integer
keys without quotes.

Source: `remoting/.../protocol/RemotingSerializable.java`; behaviour observed by running fastjson
1.2.83 and 2.0.59.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from rmqkit.errors import RemoteProtocolError

TEXT_SIZE_MAX = 16 * 1024 * 1024

T = TypeVar("T")

# A string. One without a closing quote matches to the end of the text: no byte is scanned more than
# twice.
_STRING = rb'"(?:[^"\\]++|\\.)*+"?'
# A string; a flat object (no nested objects or lists) in the position of a key; a number in the
# position of a key.
_TOKENS = re.compile(
    rb"(?P<string>" + _STRING + rb")"
    rb"|(?P<object>\{(?:[^\[\]{}\"]++|" + _STRING + rb")*+\})(?=\s*+:)"
    rb"|(?<=[{,\s])(?P<number>-?[0-9]++)(?=\s*+:)",
    re.DOTALL,
)
_SPACE = re.compile(rb"(" + _STRING + rb")|\s++", re.DOTALL)


class MessageQueue(NamedTuple):
    """A queue of a topic at a broker. Sorts as in Java: topic, broker name, queue id.

    Attributes:
        topic: The topic.
        broker_name: The name of the broker group that has the queue.
        queue_id: The number of the queue, from 0, among the topic's queues at that broker.

    Example:
        The first queue of a topic at one broker:

            MessageQueue("orders", "broker-a", 0)
    """

    topic: str
    broker_name: str
    queue_id: int


_QUEUE_FIELDS = {"brokerName", "queueId", "topic"}
_encode = msgspec.json.Encoder().encode
#: characters; the text of a longer key is not cached, so that the cache stays small
_NAME_SIZE_MAX = 64


@lru_cache(maxsize=256)
def _decoder(schema: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(schema, strict=False)


def loads(text: bytes | str, *, size_max: int = TEXT_SIZE_MAX) -> Any:
    """Decode any value as dicts with text keys, lists and scalars. Raises RemoteProtocolError."""
    return load_as(Any, text, size_max=size_max)


def load_as(schema: type[T], text: bytes | str, *, size_max: int = TEXT_SIZE_MAX, has_queues: bool = False) -> T:
    """Decode a value of a msgspec type. Numbers may be given as text; null counts as absent.

    With `has_queues` the type may have `MessageQueue`s as keys and as items of lists. Raises
    RemoteProtocolError if the text is longer than `size_max` bytes, is malformed or does not fit
    the type.
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
        plain = _tidied(_decode_plain(data), has_queues)
        return msgspec.convert(plain, schema, strict=False)
    except RecursionError:
        raise RemoteProtocolError(f"{_name(schema)}: nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"{_name(schema)}: {error}") from None


def _decode_plain(data: bytes) -> Any:
    try:
        return _decoder(Any).decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _decoder(Any).decode(to_strict(data))


def _name(schema: Any) -> str:
    return "JSON" if schema is Any else getattr(schema, "__name__", str(schema))


def _tidied(value: Any, has_queues: bool) -> Any:
    """Return the value without nulls.

    With `has_queues`, convert to queues the objects with a queue's fields and the keys that are the
    text of such an object.
    """
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
    """Return the text with integer and object keys in quotes.

    All other text stays as it is, even if it is invalid.
    """
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
    """Return the queue for a key that is the text of a queue object. Raises RemoteProtocolError."""
    return load_as(MessageQueue, key, has_queues=True)


def dumps(value: Any, *, unquoted_int_keys: bool = False) -> bytes:
    """Return compact JSON for msgspec structs, dicts (keys: text or int), lists, sets and scalars.

    Queues, as keys or as items, are only allowed inside a struct that sets `HAS_QUEUES`.
    """
    if not unquoted_int_keys and not getattr(value, "HAS_QUEUES", False):
        data = _encode(value)
        if b":null" in data and isinstance(value, msgspec.Struct):
            nulls, last = _nulls(value.__class__)
            for null in nulls:
                data = data.replace(null, b"")
            if data.endswith(last):
                data = data[: -len(last)] + b"}"
        if b":null" in data:
            data = _encode(_without_none(msgspec.to_builtins(value)))
        return data
    out: list[str] = []
    _write(msgspec.to_builtins(value), out, "" if unquoted_int_keys else '"')
    return "".join(out).encode()


@lru_cache(maxsize=256)
def _nulls(kind: type[msgspec.Struct]) -> tuple[list[bytes], bytes]:
    """Return the texts of fields that are None, and that of the last field with the closing brace.

    Each is only found where it is a field: inside a text its quotes would be escaped.
    """
    nulls = [b'"%b":null,' % each.encode_name.encode() for each in msgspec.structs.fields(kind) if each.default is None]
    return nulls, b',"%b":null}' % kind.__struct_encode_fields__[-1].encode()


def _without_none(value: Any) -> Any:
    """Return the value without the entries that are None, with numeric keys sorted."""
    kind = value.__class__
    if kind is dict:
        return {key: _without_none(item) for key, item in _items(value) if item is not None}
    return [_without_none(item) for item in value] if kind is list else value


def pretty(value: Any) -> str:
    """Return the text of a config file, without a newline at its end."""
    out: list[str] = []
    _write(msgspec.to_builtins(value), out, "", "\n")
    return "".join(out)


# `msgspec.to_builtins` leaves no subclasses, so the class of a value decides.


def _write(value: Any, out: list[str], quote: str, line: str = "") -> None:
    """Append the text of a value. `quote` encloses integer keys.

    `line` is the line break with the tabs of this level; "" writes everything in one line.
    """
    deeper = line and line + "\t"
    kind = value.__class__
    if kind is dict:
        mark, comma = "{" + deeper, "," + deeper
        for key, item in _items(value):
            if item is None:
                continue
            kind = item.__class__
            name = _text(key) if key.__class__ is str else _key(key, quote, deeper)
            if kind is int:
                out.append(f"{mark}{name}:{item}")
            elif kind is str:
                out.append(f"{mark}{name}:{_text(item)}")
            elif kind is bool:
                out.append(f"{mark}{name}:{'true' if item else 'false'}")
            else:
                out.append(f"{mark}{name}:")
                _write(item, out, quote, deeper)
            mark = comma
        out.append(line + "}" if mark is comma else "{}")
    elif kind is tuple:
        out.append(_queue(value, line))
    elif kind is list:
        mark, comma = "[" + deeper, "," + deeper
        for item in value:
            out.append(mark)
            _write(item, out, quote, deeper)
            mark = comma
        out.append(line + "]" if mark is comma else "[]")
    else:
        out.append(_encode(value).decode())


def _items(value: dict[Any, Any]) -> Any:
    """Sort entries whose keys are numbers or queues, so that the output is deterministic."""
    return sorted(value.items()) if value and not isinstance(next(iter(value)), str) else value.items()


def _key(key: Any, quote: str, line: str) -> str:
    """Return the text of a key that is a number or a queue."""
    return f"{quote}{key}{quote}" if key.__class__ is int else _queue(key, line)


def _text(text: str) -> str:
    """Return the text in quotes. Most texts are names, which repeat."""
    return _name_text(text) if len(text) <= _NAME_SIZE_MAX else _encode(text).decode()


@lru_cache(maxsize=1024)
def _name_text(name: str) -> str:
    return _encode(name).decode()


def _queue(queue: tuple[str, str, int], line: str) -> str:
    """Return the text of a queue object.

    `msgspec.to_builtins` turns queues into plain tuples; no other value that is written here
    becomes a tuple.
    """
    topic, broker_name, queue_id = queue
    deeper = line + "\t" if line else ""
    fields = (
        f'"brokerName":{_encode(broker_name).decode()}',
        f'"queueId":{queue_id}',
        f'"topic":{_encode(topic).decode()}',
    )
    return "{" + deeper + f",{deeper}".join(fields) + line + "}"
