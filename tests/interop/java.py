"""Runs the driver's checks in one JVM, with one version of Apache's Java client.

The checks are in `driver/src/main/java/rmqkit/interop`. `NOT_YET` lists the checks that our broker
cannot pass, with reasons. They run against Apache's broker only (RMQKIT_INTEROP_AGAINST=apache).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop import apache
from tests.interop.conftest import against_apache
from tests.interop.lines import CheckRun

#: number of checks that run at once; a check spends most of its time waiting
THREADS = 4
SENDING = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_properties",
    "send_unicode",
    "send_large",
    "send_to_chosen_queue",
    "send_to_unknown_topic",
    "send_refused",
    "send_delay_level",
    "send_transaction",
    "send_timer_property",
)
PUSHING = (
    "push_one_member",
    "push_tag_filter",
    "push_sql_filter",
    "sql_refused",
    "push_rebalance",
    "push_broadcast",
    "push_resume",
    "push_orderly",
    "push_orderly_suspend",
    "push_orderly_two_members",
    "push_retry",
    "push_retry_dlq",
    "request_reply",
    "trace",
)
PULLING = (
    "pull_plain",
    "pull_long_poll",
    "pull_tag_filter",
    "pull_sql_filter",
    "pull_offsets",
    "lite_assign_seek",
    "lite_subscribe_resume",
)
ADMIN = (
    "admin_topic",
    "admin_cluster",
    "admin_delete_topic",
    "admin_offsets",
    "admin_view_message",
    "admin_kv",
    "admin_write_perm",
    "admin_broker_config",
    "admin_group",
    "admin_topic_stats",
    "admin_connections",
    "admin_consume_stats",
    "admin_broker_runtime",
    "admin_reset_offset",
    "query_by_key",
    "query_by_unique_id",
    "consumer_running_info",
    "consume_message_directly",
)
BATCH_TOPICS = (
    "batch_outer",
    "batch_inner",
    "batch_inner_consumers",
    "batch_inner_retry",
    "batch_without_id",
    "batch_properties",
    "batch_topic_type",
)
#: checks for which the 4.9 client has no API (`older.NEWER_ONLY`)
NEWER = (
    "send_compressed",
    "push_heartbeat_v2",
    "admin_lists",
    "admin_reset_queue",
    "admin_group_views",
    "sql_meaning",
    "lite_sql_filter",
    "batch_view",
    *BATCH_TOPICS,
    "pop_push",
    "pop_push_retry",
    "pop_requests",
    "pop_orderly",
    "send_timer",
    "recall_timer",
)
NOT_YET: dict[str, str] = {}
_WORKING = (*SENDING, *PUSHING, *PULLING, *ADMIN)
_SHOWS = {
    "sync": ("send_sync",),
    "async": ("send_async",),
    "one-way": ("send_oneway",),
    "batch": ("send_batch", "batch_view"),
    "BatchCQ": BATCH_TOPICS,
    "ordered": ("send_to_chosen_queue", "push_orderly", "push_orderly_suspend", "push_orderly_two_members"),
    "tag": ("push_tag_filter", "pull_tag_filter"),
    "SQL92": ("push_sql_filter", "pull_sql_filter", "sql_refused", "sql_meaning", "lite_sql_filter"),
    "broadcasting": ("push_broadcast",),
    "rebalance": ("push_rebalance",),
    "delay level": ("send_delay_level",),
    "transaction": ("send_transaction",),
    "timer": ("send_timer", "send_timer_property", "recall_timer"),
    "retry → DLQ": ("push_retry", "push_retry_dlq"),
    "query by key and id": ("query_by_key", "query_by_unique_id", "admin_view_message"),
    "offset reset": ("admin_reset_offset",),
    "request–reply": ("request_reply",),
    "trace": ("trace",),
    "pop": ("pop_push", "pop_push_retry", "pop_requests", "pop_orderly"),
}


def known(version: str) -> tuple[str, ...]:
    """Return every check that runs with this version of the client."""
    return (*_WORKING, *(NEWER if version == apache.VERSION else ()), *NOT_YET)


def chosen(version: str) -> tuple[str, ...]:
    """Return the checks that must pass against the cluster of this run."""
    checks = known(version)
    return checks if against_apache() else tuple(check for check in checks if check not in NOT_YET)


def shows(version: str) -> dict[str, Sequence[str]]:
    """Map each feature to the chosen checks that prove it."""
    checks = chosen(version)
    return {feature: [check for check in names if check in checks] for feature, names in _SHOWS.items()}


def run(
    namesrv: str, home: Path, version: str, checks: Sequence[str], properties: Mapping[str, str] | None = None
) -> CheckRun:
    """Start the JVM with these system properties; it runs the checks at once."""
    return CheckRun(
        home,
        lambda errors: apache.start_java(
            "rmqkit.interop.Driver",
            [namesrv, *checks],
            home=home,
            version=version,
            stderr=errors,
            heap_mb=384,
            properties={"interop.threads": str(THREADS), **(properties or {})},
        ),
    )


def listed(version: str, home: Path) -> set[str]:
    """Return the driver's own list of its checks."""
    process = apache.start_java("rmqkit.interop.Driver", ["list"], home=home, version=version, stderr=None)
    lines = process.stdout.read().splitlines() if process.stdout else []
    apache.end(process, clean=False)
    return {row["check"] for row in map(json.loads, lines) if row["group"] != "sample"}
