"""The options of the data sources `rocketmq` (batch, stream, sink) and `rocketmq-store` (store).

Each is declared once, as a field of `SourceOptions`: its name is the option's in snake_case, and
its type says how the text is parsed (`option_kinds`).
The table `OPTIONS` and `docs/spark.md` come from these declarations. `parse` turns the texts that
Spark passes (with case-insensitive names) into a `SourceOptions`.

Where Spark's Kafka source has an equal option, its name and meaning are used. For a Kafka name that
differs, the error says what the option is called here.

A batch accepts the options of a stream and ignores them, and vice versa, so one set of options
serves both. An option that belongs to neither is an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark import option_kinds as kinds
from rmqkit.spark.option_kinds import Option, option
from rmqkit.spark.source.ranges import OffsetRange, split
from rmqkit.suggestions import suggest
from rmqkit.wire.topic_names import SYSTEM_PREFIX, SYSTEM_TOPICS

PLACES = ("batch", "stream", "sink", "store")
BATCH, STREAM = frozenset({"batch"}), frozenset({"stream"})
READ = BATCH | STREAM
SINK, STORE = frozenset({"sink"}), frozenset({"store"})
SYSTEM_PREFIXES, SYSTEM_SUFFIX = (SYSTEM_PREFIX, SYSTEM_PREFIX.upper()), "_REPLY_TOPIC"
#: Names that Spark adds by itself, in lower case: for `load(path)`, for written streams, and for
#: tables (`TableCatalog.PROP_*`).
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "serialization.format"})
SPARKS_OWN |= {"provider", "location", "owner", "comment", "collation", "external", "table_type", "is_managed_location"}
#: Prefix that Spark adds to a table's options. When the table is created, Spark also passes them
#: without it.
PREFIX = "option."
NOT_KEPT = (
    "Spark keeps the options of a table only if it has no columns of its own: leave them out, or make a temporary view"
)
#: Names in Kafka's source and in the old rocketmq-spark (lower case) -> our name.
OTHERS = {
    "kafka.bootstrap.servers": "namesrv",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "maxrecordsperpartition": "maxMessagesPerPartition",
    "maxtriggerbytes": "maxBytesPerTrigger",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafka.group.id": "commitGroup",
    "groupidprefix": "commitGroup",
    "consumergroup": "commitGroup",
    "group.id": "commitGroup",
    "nameserver": "namesrv",
    "nameserveraddress": "namesrv",
    "namesrvaddr": "namesrv",
    "topics": "subscribe",
}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Parsed options, with the defaults of their place filled in.

    An option without a value and without a default is 0 (counts, sizes in bytes), None (times) or
    "" (texts). Times are Unix ms; durations are ms.
    """

    where: str
    namesrv: kinds.NameServers = option(
        READ | SINK,
        "Name servers as `host:port;host:port`. The default is NAMESRV_ADDR of the driver's "
        "environment, else `127.0.0.1:9876`.",
    )
    subscribe: kinds.Texts = option(
        READ | STORE,
        "Topics to read, separated by commas. A missing topic is an error at the start.",
    )
    subscribe_pattern: kinds.Pattern = option(
        READ | STORE,
        "Regular expression (Python's) that the whole name of a topic must match. It never "
        "matches system topics. It matches `%RETRY%` and `%DLQ%` topics only if it begins with "
        "`%`. Topics created later are read from their earliest message on.",
    )
    assign: kinds.Assignment = option(
        READ,
        'Exactly these queues: `{"T": {"broker-a": [0, 1]}}`. One of `subscribe`, '
        "`subscribePattern`, `assign` is required.",
    )
    starting_offsets: kinds.Start = option(
        READ,
        "Where to begin: `earliest`, `latest`, `group` (the committed offsets of the group in "
        '`group`) or JSON `{"T": {"broker-a": {"0": 23, "1": -2}}}` with -2 for earliest, -1 for '
        "latest. Queues that the JSON does not name begin at their earliest message. A stream "
        "uses this option once; later it continues from its checkpoint.",
        "latest",
        in_batch="earliest",
    )
    ending_offsets: kinds.End = option(
        READ,
        "Where to end (exclusive): `latest`, or JSON as for `startingOffsets` without -2. Queues "
        "that the JSON does not name end at their latest message. A stream with JSON reads up to "
        "there and then idles (or ends, with AvailableNow); `latest` does not bound a stream.",
        "latest",
    )
    starting_timestamp: kinds.Time = option(
        READ | STORE,
        "Begin with the first message of each queue that was stored at this time or later: Unix "
        "ms, or ISO 8601 with a zone. Takes precedence over `startingOffsets`.",
    )
    ending_timestamp: kinds.Time = option(
        READ | STORE,
        "End before the first message of each queue that was stored at this time or later. Takes "
        "precedence over `endingOffsets`. The time may be in the future: a batch then ends at the "
        "latest message, a stream when the time is reached.",
    )
    starting_offsets_by_timestamp_strategy: Annotated[str, kinds.choice_of("error", "latest")] = option(
        READ,
        "What to do if no queue has a message stored at `startingTimestamp` or later: `error`, or "
        "`latest` (begin with the next message). A single queue without such a message begins "
        "with its next one.",
        "error",
    )
    group: kinds.Group = option(
        READ,
        "The consumer group for `startingOffsets=group`; the default is that of `commitGroup`. A "
        "queue that the group never consumed begins at its earliest message.",
    )
    max_messages_per_trigger: kinds.Count = option(
        STREAM,
        "Limit of messages per batch, divided among the queues in proportion to what waits; no queue starves.",
    )
    max_bytes_per_trigger: kinds.Size = option(
        STREAM,
        "Approximate limit of bytes per batch (`64m` is 64 MiB), at least one message. An "
        "estimate: before each batch with more waiting, up to 32 messages from the next offset of "
        "each queue are measured as stored.",
    )
    min_messages_per_trigger: kinds.Count = option(
        STREAM,
        "Delay a batch until this many messages wait, or `maxTriggerDelay` is over. Not with "
        "AvailableNow, and not for the first batch.",
    )
    max_trigger_delay: kinds.Duration = option(
        STREAM,
        "How long `minMessagesPerTrigger` may delay a batch: `30s`, `15m`, `1h`, or ms.",
        "15m",
    )
    min_partitions: kinds.Count = option(
        READ,
        "Minimum of Spark partitions: large queues are split. Without it each queue is one partition.",
    )
    max_messages_per_partition: kinds.Count = option(READ, "Limit of messages per Spark partition.")
    fail_on_data_loss: kinds.Switch = option(
        READ,
        "Fail if messages that should be read are gone (deleted by retention, or the queue was "
        "truncated or recreated). With `false` the query logs a warning and continues with what "
        "is there.",
        "true",
    )
    when_down: Annotated[str, kinds.choice_of("wait", "fail")] = option(
        READ,
        "What to do if no broker of a group answers, not even a slave: `wait` or `fail`. With "
        "`wait` a stream continues with the other groups and never skips messages; what must be "
        "read at once waits up to `maxWaitForBroker`.",
        "wait",
    )
    max_wait_for_broker: kinds.Duration = option(
        READ | SINK,
        "How long a query that cannot continue waits for a broker group before it fails.",
        "2m",
    )
    request_timeout: kinds.Duration = option(READ | SINK, "How long an executor waits for one answer of a broker.", "5s")
    #: In the order of the table of columns; without `body` if `include_body` is false.
    columns: kinds.Texts = option(
        READ | STORE,
        "Only these columns, separated by commas; the others are not decoded. Spark prunes no columns by itself.",
    )
    include_body: kinds.Switch = option(READ | STORE, "`false` omits the column `body`.", "true")
    decode: Annotated[str, kinds.choice_of("none", "json")] = option(
        READ,
        "`json`: bodies are JSON objects, and their fields become columns after the others. A "
        "body that does not decode is in `_corrupt`.",
        "none",
    )
    decode_schema: str = option(
        READ,
        "The fields of `decode=json`, as DDL: `id bigint, name string`. Alternatively, "
        "`.schema(...)` may name them beside the columns of messages.",
    )
    tags: kinds.Tags = option(
        READ,
        "Only messages with one of these tags: `TagA || TagB`. Brokers filter out the others.",
        "*",
    )
    commit_group: kinds.Group = option(
        STREAM,
        "A consumer group for which the query commits its offsets, so that RocketMQ's own tools "
        "show its lag. Spark continues from its checkpoint, not from these offsets.",
    )
    pushdown: kinds.Switch = option(
        BATCH,
        "Filters of the query on topic, broker, queue, offset, store_time and tags limit what is "
        "read. Requires `spark.sql.python.filterPushdown.enabled=true` "
        "(`rmqkit.spark.session(pushdown=True)`).",
        "false",
    )
    topic: str = option(SINK, "The topic of rows that have no `topic` of their own.")
    required_status: Annotated[str, kinds.choice_of("send_ok", "any")] = option(
        SINK,
        "`SEND_OK`: a message with any other status is sent again; the third time, the task "
        "fails. These statuses are FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and "
        "SLAVE_NOT_AVAILABLE: the message is stored, but not yet as safely as the broker is "
        "configured to store it. `any`: they are only counted.",
        "send_ok",
    )
    run_id: str = option(
        SINK,
        "The first part of the property `DEDUP_KEY` (`<run id>/<batch id>/<partition>/<row>`). "
        "The default is the query's id, for a batch a random id. If you run a batch again, pass "
        "the id of its first run.",
    )
    messages_per_second: kinds.Count = option(
        SINK,
        "Limit of rows per second for the whole job, shared out over the tasks that send at the "
        "same time. The driver serves the pace: sessions of `rmqkit.spark.session()` do, for "
        "others call `rmqkit.spark.serve_pace(spark)`.",
    )
    producer_group: kinds.Group = option(SINK, "The producer group of the workers' producers.", "rmqkit-spark")
    files: kinds.Texts = option(
        STORE,
        "Only commit-log files whose names match one of these patterns (`*`, `?`), separated by commas.",
    )
    allow_running: kinds.Switch = option(
        STORE,
        "Read a folder that a broker has open. Rows end where the log ended when each file was examined.",
        "false",
    )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name; none with a pattern."""
        return self.subscribe or tuple(sorted({key.topic for key in self.assign}))

    def selects(self, topic: str, broker: str = "", queue: int = -1) -> bool:
        """Whether the query reads a topic; if given, also the broker and the queue.

        A pattern never selects system topics. It selects topics of groups (`%RETRY%`, `%DLQ%`) only
        if it begins with `%`.
        """
        pattern = self.subscribe_pattern
        if pattern:
            is_system = topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES) or topic.endswith(SYSTEM_SUFFIX)
            is_of_group = topic.startswith("%") and not pattern.lstrip("^(").startswith("%")
            return not (is_system or is_of_group) and re.fullmatch(pattern, topic) is not None
        if queue >= 0 and self.assign:
            return (topic, broker, queue) in self.assign
        return topic in self.subscribe or any(key.topic == topic and broker in ("", key.broker) for key in self.assign)

    def partitions(self, found: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Split ranges into Spark's partitions."""
        return split(found, partitions_min=self.min_partitions, messages_max=self.max_messages_per_partition)


_BY_ATTRIBUTE: dict[str, Option] = {
    each.name: each.metadata["option"]._replace(
        name=re.sub(r"_([a-z])", lambda found: found[1].upper(), each.name),
        # The types are objects, since this module does not postpone annotations.
        parse=getattr(each.type, "__metadata__", [str])[0],
    )
    for each in fields(SourceOptions)
    if "option" in each.metadata
}
OPTIONS = {each.name: each for each in _BY_ATTRIBUTE.values()}
"""Option name -> option, in the order of the documentation."""


def parse(given: Mapping[str, str], where: str) -> SourceOptions:
    """Parse the options that Spark passed for `where`, one of PLACES.

    Raises ConfigError, which names the option. For an unknown option it suggests the closest one.
    """
    texts: dict[str, str] = {}
    by_lower = {name.lower(): name for name in OPTIONS}
    for key, value in given.items():
        name = by_lower.get(key.lower())
        if name is not None:
            _check_place(OPTIONS[name], where)
            texts[name] = value
        elif key.lower() not in SPARKS_OWN and not key.lower().startswith(PREFIX):
            raise ConfigError(_unknown(key, where))
    values = {
        attribute: _value(each, texts.get(each.name, each.default_in(where))) for attribute, each in _BY_ATTRIBUTE.items()
    }
    values["columns"] = _columns(values, where)
    parsed = SourceOptions(where=where, **values)
    if where in READ:
        _check_read(parsed, texts)
    return parsed


def _check_place(known: Option, where: str) -> None:
    # A batch accepts the options of a stream, and vice versa.
    if where not in known.where and not (where in READ and known.where & READ):
        if known.name == "topic":
            raise ConfigError("option topic applies to the sink only; a query reads the topics of subscribe")
        places = " and ".join(place for place in PLACES if place in known.where)
        raise ConfigError(f"option {known.name} applies to {places}, not to {where}")


def _unknown(key: str, where: str) -> str:
    lower = key.lower()
    if lower in OTHERS:
        return f"option {key} is called {OTHERS[lower]} here"
    if lower.startswith("kafka."):
        return f"option {key} belongs to Kafka's source; rmqkit has namesrv and requestTimeout for its clients"
    names = [each.name for each in OPTIONS.values() if where in each.where]
    return f"option {key} is not known{suggest(key, names, f'options of the {where}: {{known}}')}"


def _value(known: Option, text: str) -> Any:
    try:
        return known.parse(text.strip())
    except (ValueError, RmqkitError) as error:
        raise ConfigError(f"option {known.name}: {error}") from None


def _check_read(options: SourceOptions, texts: Mapping[str, str]) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if texts.get(name, "").strip()]
    if len(chosen) > 1:
        raise ConfigError(f"options {' and '.join(chosen)} exclude each other: choose one")
    if not chosen:
        hint = "" if texts else f". {NOT_KEPT}"
        raise ConfigError(f"option subscribe is missing: set it, subscribePattern or assign to choose topics{hint}")
    if options.starting_offsets == "group" and not (options.group or options.commit_group):
        raise ConfigError("option startingOffsets=group needs the name of a group in option group")
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"option startingTimestamp ({begin}) is later than endingTimestamp ({end})")
    if options.decode_schema and options.decode == "none":
        raise ConfigError("option decodeSchema needs decode=json")
    limit = options.max_messages_per_trigger
    if limit and options.min_messages_per_trigger > limit:
        raise ConfigError(f"option minMessagesPerTrigger is above maxMessagesPerTrigger ({limit})")


def _columns(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the selected columns in the order of their table; none for the sink."""
    from rmqkit.spark.columns import COLUMNS, STORE_COLUMNS

    table = STORE_COLUMNS if where == "store" else COLUMNS if where in READ else {}
    names, with_body = values["columns"] or tuple(table), values["include_body"]
    for name in names:
        if name not in table:
            hint = suggest(name, table, "choose from {known}")
            raise ConfigError(f"option columns: {name!r} is not a column of a message{hint}")
    if "body" in values["columns"] and not with_body:
        raise ConfigError("option columns names body, but includeBody is false")
    return tuple(name for name in table if name in names and (with_body or name != "body"))
