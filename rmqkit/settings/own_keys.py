"""Rows of our own keys, which Apache does not have, and of Apache's keys of earlier releases."""

from __future__ import annotations

from rmqkit.settings.table import Row, Type, Value, in_area, no_effect, works

NAMES = r"[A-Za-z0-9_.-]*(?:[;,]\s*[A-Za-z0-9_.-]+)*"


def names(value: Value) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(value).replace(",", ";").split(";") if part.strip())


PLUGINS = in_area(
    "Plug-ins",
    works(
        "plugins",
        Type.STR,
        "",
        "plugins.plugins",
        "plug-ins to switch on, by name: `a;b`; their own keys are written `plugin.NAME.KEY`",
        pattern=NAMES,
        allowed="names separated by ;",
        convert=names,
    ),
)

BROKER = in_area(
    "Plug-ins",
    works(
        "storageEngine",
        Type.STR,
        "mapped",
        "commit_log.storage_engine",
        "what keeps the messages: `mapped` (RocketMQ's files), `memory`, or one that a plug-in brings",
        pattern=r"[A-Za-z0-9_.-]{1,64}",
        allowed="the name of a storage engine",
    ),
    works(
        "memoryEngineSizeMax",
        Type.INT,
        268_435_456,
        "commit_log.memory_engine_size_max",
        "bytes that the storage engine `memory` keeps; the oldest messages go first",
        low=16_777_216,
    ),
    works(
        "lockMode",
        Type.STR,
        "loose",
        "coordination.lock_mode",
        "who grants the locks of ordered consumption: `loose` (this broker alone), `strict` (a quorum of the group), or "
        "one that a plug-in brings",
        pattern=r"[A-Za-z0-9_.-]{1,64}",
        allowed="the name of a lock mode",
    ),
    works(
        "escapeStrategy",
        Type.STR,
        "",
        "acting.escape_strategy",
        "where an acting master puts messages that are due: `none`, `local` (another master in this process), `remote` "
        "(a master of another group), `auto` (local, then remote), or a plug-in's; empty: by enableRemoteEscape",
        pattern=r"[A-Za-z0-9_.-]{0,64}",
        allowed="the name of an escape strategy",
    ),
    *no_effect(
        "the producer chooses: set it on the client",
        """
        faultPolicy: str = ""
        sendLatencyFaultEnable: bool = false
        """,
    ),
)

FORMER = in_area(
    "Keys of earlier releases",
    *no_effect(
        "Apache dropped it",
        """
        commercialEnable: bool = true
        commercialTimerCount: int = 1
        commercialTransCount: int = 1
        commercialBigCount: int = 1
        filterServerNums: int = 0
        maxDelayTime: int = 40
        haSlaveFallbehindMax: int = 268435456
        batchWriteKvCqSize: int = 16
        transferMetadataJsonToRocksdb: bool = false
        transferOffsetJsonToRocksdb: bool = false
        enableTransparentRetry: bool = true
        """,
    ),
    *no_effect("guides on the web name it, Apache does not read it", "checkTransactionMessageEnable: bool = false"),
    *no_effect(
        "Apache never read it: the place follows from storePathRootDir",
        """
        storePathConsumeQueue: path = -
        storePathIndex: path = -
        storeCheckpoint: path = -
        abortFile: path = -
        """,
    ),
)

BROKER_ROWS: tuple[Row, ...] = BROKER + FORMER
ROWS: tuple[Row, ...] = PLUGINS
