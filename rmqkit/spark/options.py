"""The options of the data sources `rocketmq` (batch, stream, sink) and `rocketmq-store` (store).

Each is declared once, as a field of `SourceOptions`, whose name is the option's in snake_case.
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
from typing import Any

from rmqkit.errors import ClientError, ConfigError
from rmqkit.spark import option_kinds as kinds
from rmqkit.spark import tables
from rmqkit.spark.option_kinds import Option, option
from rmqkit.spark.source.ranges import Ends, OffsetRange, split
from rmqkit.suggestions import suggest

PLACES = ("batch", "stream", "sink", "store")
BATCH, STREAM = frozenset({"batch"}), frozenset({"stream"})
READ = BATCH | STREAM
SINK, STORE = frozenset({"sink"}), frozenset({"store"})
#: Names that Spark adds by itself, in lower case: for `load(path)`, for written streams, and for
#: tables (`TableCatalog.PROP_*`).
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "serialization.format"})
SPARKS_OWN |= {"provider", "location", "owner", "comment", "collation", "external", "table_type", "is_managed_location"}
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
    namesrv: tuple[str, ...] = option(
        str,
        READ | SINK,
        "Name servers as `host:port;host:port`. The default is NAMESRV_ADDR of the driver's "
        "environment, else `127.0.0.1:9876`.",
    )
    subscribe: tuple[str, ...] = option(
        kinds.list_of,
        READ | STORE,
        "Topics to read, separated by commas. A missing topic is an error at the start.",
    )
    subscribe_pattern: str = option(
        kinds.pattern_of,
        READ | STORE,
        "Regular expression (Python's) that the whole name of a topic must match. It never "
        "matches system topics. It matches `%RETRY%` and `%DLQ%` topics only if it begins with "
        "`%`. Topics created later are read from their earliest message on.",
    )
    #: Topic -> broker name -> queue ids.
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] = option(
        kinds.assignment_of,
        READ,
        'Exactly these queues: `{"T": {"broker-a": [0, 1]}}`. One of `subscribe`, '
        "`subscribePattern`, `assign` is required.",
    )
    #: `earliest`, `latest`, `group`, or an offset per queue, which may be LATEST or EARLIEST.
    starting_offsets: str | Ends = option(
        kinds.start_of,
        READ,
        "Where to begin: `earliest`, `latest`, `group` (the committed offsets of the group in "
        '`group`) or JSON `{"T": {"broker-a": {"0": 23, "1": -2}}}` with -2 for earliest, -1 for '
        "latest. Queues that the JSON does not name begin at their earliest message. A stream "
        "uses this option once; later it continues from its checkpoint.",
        "latest",
        in_batch="earliest",
    )
    ending_offsets: str | Ends = option(
        kinds.end_of,
        READ,
        "Where to end (exclusive): `latest`, or JSON as for `startingOffsets` without -2. Queues "
        "that the JSON does not name end at their latest message. A stream with JSON reads up to "
        "there and then idles (or ends, with AvailableNow); `latest` does not bound a stream.",
        "latest",
    )
    starting_timestamp: int | None = option(
        kinds.time_of,
        READ | STORE,
        "Begin with the first message of each queue that was stored at this time or later: Unix "
        "ms, or ISO 8601 with a zone. Takes precedence over `startingOffsets`.",
    )
    ending_timestamp: int | None = option(
        kinds.time_of,
        READ | STORE,
        "End before the first message of each queue that was stored at this time or later. Takes "
        "precedence over `endingOffsets`. The time may be in the future: a batch then ends at the "
        "latest message, a stream when the time is reached.",
    )
    starting_offsets_by_timestamp_strategy: str = option(
        kinds.choice_of("error", "latest"),
        READ,
        "What to do if no queue has a message stored at `startingTimestamp` or later: `error`, or "
        "`latest` (begin with the next message). A single queue without such a message begins "
        "with its next one.",
        "error",
    )
    group: str = option(
        kinds.group_of,
        READ,
        "The consumer group for `startingOffsets=group`; the default is that of `commitGroup`. A "
        "queue that the group never consumed begins at its earliest message.",
    )
    max_messages_per_trigger: int = option(
        kinds.count_of,
        STREAM,
        "Limit of messages per batch, divided among the queues in proportion to what waits; no queue starves.",
    )
    max_bytes_per_trigger: int = option(
        kinds.size_of,
        STREAM,
        "Approximate limit of bytes per batch (`64m` is 64 MiB), at least one message. An "
        "estimate: before each batch with more waiting, up to 32 messages from the next offset of "
        "each queue are measured as stored.",
    )
    min_messages_per_trigger: int = option(
        kinds.count_of,
        STREAM,
        "Delay a batch until this many messages wait, or `maxTriggerDelay` is over. Not with "
        "AvailableNow, and not for the first batch.",
    )
    max_trigger_delay: int = option(
        kinds.duration_of,
        STREAM,
        "How long `minMessagesPerTrigger` may delay a batch: `30s`, `15m`, `1h`, or ms.",
        "15m",
    )
    min_partitions: int = option(
        kinds.count_of,
        READ,
        "Minimum of Spark partitions: large queues are split. Without it each queue is one partition.",
    )
    max_messages_per_partition: int = option(kinds.count_of, READ, "Limit of messages per Spark partition.")
    fail_on_data_loss: bool = option(
        kinds.bool_of,
        READ,
        "Fail if messages that should be read are gone (deleted by retention, or the queue was "
        "truncated or recreated). With `false` the query logs a warning and continues with what "
        "is there.",
        "true",
    )
    when_down: str = option(
        kinds.choice_of("wait", "fail"),
        READ,
        "What to do if no broker of a group answers, not even a slave: `wait` or `fail`. With "
        "`wait` a stream continues with the other groups and never skips messages; what must be "
        "read at once waits up to `maxWaitForBroker`.",
        "wait",
    )
    max_wait_for_broker: int = option(
        kinds.duration_of,
        READ | SINK,
        "How long a query that cannot continue waits for a broker group before it fails.",
        "2m",
    )
    request_timeout: int = option(
        kinds.duration_of, READ | SINK, "How long an executor waits for one answer of a broker.", "5s"
    )
    #: In the order of the table of columns; without `body` if `include_body` is false.
    columns: tuple[str, ...] = option(
        kinds.list_of,
        READ | STORE,
        "Only these columns, separated by commas; the others are not decoded. Spark prunes no columns by itself.",
    )
    include_body: bool = option(kinds.bool_of, READ | STORE, "`false` omits the column `body`.", "true")
    decode: str = option(
        kinds.choice_of("none", "json"),
        READ,
        "`json`: bodies are JSON objects, and their fields become columns after the others. A "
        "body that does not decode is in `_corrupt`.",
        "none",
    )
    decode_schema: str = option(
        str,
        READ,
        "The fields of `decode=json`, as DDL: `id bigint, name string`. Alternatively, "
        "`.schema(...)` may name them beside the columns of messages.",
    )
    tags: str = option(
        str,
        READ,
        "Only messages with one of these tags: `TagA || TagB`. Brokers filter out the others.",
        "*",
    )
    commit_group: str = option(
        kinds.group_of,
        STREAM,
        "A consumer group for which the query commits its offsets, so that RocketMQ's own tools "
        "show its lag. Spark continues from its checkpoint, not from these offsets.",
    )
    pushdown: bool = option(
        kinds.bool_of,
        BATCH,
        "Filters of the query on topic, broker, queue, offset, store_time and tags limit what is "
        "read. Requires `spark.sql.python.filterPushdown.enabled=true` "
        "(`rmqkit.spark.session(pushdown=True)`).",
        "false",
    )
    topic: str = option(str, SINK, "The topic of rows that have no `topic` of their own.")
    required_status: str = option(
        kinds.choice_of("send_ok", "any"),
        SINK,
        "`SEND_OK`: a message with any other status is sent again; the third time, the task "
        "fails. These statuses are FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and "
        "SLAVE_NOT_AVAILABLE: the message is stored, but not yet as safely as the broker is "
        "configured to store it. `any`: they are only counted.",
        "send_ok",
    )
    run_id: str = option(
        str,
        SINK,
        "The first part of the property `DEDUP_KEY` (`<run id>/<batch id>/<partition>/<row>`). "
        "The default is the query's id, for a batch a random id. If you run a batch again, pass "
        "the id of its first run.",
    )
    messages_per_second: int = option(
        kinds.count_of,
        SINK,
        "Limit of rows per second for the whole job, shared out over the tasks that send at the "
        "same time. The driver serves the pace: sessions of `rmqkit.spark.session()` do, for "
        "others call `rmqkit.spark.serve_pace(spark)`.",
    )
    producer_group: str = option(kinds.group_of, SINK, "The producer group of the workers' producers.", "rmqkit-spark")
    files: tuple[str, ...] = option(
        kinds.list_of,
        STORE,
        "Only commit-log files whose names match one of these patterns (`*`, `?`), separated by commas.",
    )
    allow_running: bool = option(
        kinds.bool_of,
        STORE,
        "Read a folder that a broker has open. Rows end where the log ended when each file was examined.",
        "false",
    )

    def partitions(self, found: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Split ranges into Spark's partitions."""
        return split(found, partitions_min=self.min_partitions, messages_max=self.max_messages_per_partition)


def _spelled(attribute: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), attribute)


_BY_ATTRIBUTE: dict[str, Option] = {
    each.name: each.metadata["option"]._replace(name=_spelled(each.name))
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
        elif key.lower() not in SPARKS_OWN and not key.lower().startswith(tables.PREFIX):
            raise ConfigError(_unknown(key, where))
    values = {
        attribute: _value(each, texts.get(each.name, each.default_in(where))) for attribute, each in _BY_ATTRIBUTE.items()
    }
    values["namesrv"] = _name_servers(values["namesrv"])
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
    except ValueError as error:
        raise ConfigError(f"option {known.name}: {error}") from None


def _check_read(options: SourceOptions, texts: Mapping[str, str]) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if texts.get(name, "").strip()]
    if len(chosen) > 1:
        raise ConfigError(f"options {' and '.join(chosen)} exclude each other: choose one")
    if not chosen:
        hint = "" if texts else f". {tables.NOT_KEPT}"
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


def _name_servers(text: str) -> tuple[str, ...]:
    from rmqkit.api.identity import name_servers

    try:
        return tuple(str(address) for address in name_servers(text or None))
    except ClientError as error:
        raise ConfigError(f"option namesrv: {error}") from None


def _columns(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the selected columns in the order of their table; none for the sink."""
    if where == "sink":
        return ()
    from rmqkit.spark.columns import COLUMNS, STORE_COLUMNS, checked

    table = STORE_COLUMNS if where == "store" else COLUMNS
    try:
        names = checked(values["columns"], table)
    except ConfigError as error:
        raise ConfigError(f"option columns: {error}") from None
    if values["include_body"]:
        return names or tuple(table)
    if "body" in names:
        raise ConfigError("option columns names body, but includeBody is false")
    return names or tuple(name for name in table if name != "body")
