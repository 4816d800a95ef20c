"""Admin: what administrators do, from any thread; each method waits for its answer.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("T", queue_nums=4)

The methods are those of `rmqkit.client.admin.groups.Admin`, and the functions of `admin_messages` and `admin_stats` beside
it, where each is described.
"""

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rmqkit.api.io_thread import acquire, release
from rmqkit.client.admin import messages, stats
from rmqkit.client.admin.groups import Admin as Core
from rmqkit.client.flow import start
from rmqkit.errors import ClientClosed, RmqkitError

P = ParamSpec("P")
R = TypeVar("R")


def _waits(method: Callable[Concatenate[Core, P], Coroutine[Any, Any, R]]) -> "Callable[Concatenate[Admin, P], R]":
    """The blocking form of a flow of the core."""
    wanted = signature(method)

    @wraps(method)
    def call(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.check()
        wanted.bind(self.core, *args, **kwargs)  # wrong arguments raise here, not in the I/O thread
        return self.io.wait(f"Admin.{method.__name__}()", lambda: start(method(self.core, *args, **kwargs)))

    return call


class Admin:
    def __init__(self, namesrv: str | Sequence[str] | None = None, *, instance_name: str | None = None) -> None:
        """`namesrv`: `host:port;host:port` or a list; by default NAMESRV_ADDR, else 127.0.0.1:9876."""
        self._closed = False
        self.io = acquire(self, namesrv, instance_name)
        self.core = Core(self.io.client)

    cluster_info = _waits(Core.cluster_info)
    topics = _waits(Core.topics)
    topics_of_cluster = _waits(Core.topics_of_cluster)
    route = _waits(Core.route)
    queues = _waits(Core.queues)
    masters = _waits(Core.masters)
    broker_address = _waits(Core.broker_address)

    create_topic = _waits(Core.create_topic)
    delete_topic = _waits(Core.delete_topic)
    topic_config = _waits(Core.topic_config)
    topic_stats = _waits(Core.topic_stats)
    set_topic_perm = _waits(stats.set_topic_perm)
    topic_rates = _waits(stats.topic_rates)
    clean_unused_topics = _waits(stats.clean_unused_topics)
    clean_expired_queues = _waits(stats.clean_expired_queues)

    broker_config = _waits(Core.broker_config)
    update_broker_config = _waits(Core.update_broker_config)
    broker_runtime = _waits(Core.broker_runtime)
    broker_stats = _waits(stats.broker_stats)
    ask_broker = _waits(Core.ask_broker)
    ha_status = _waits(Core.ha_status)

    nameserver_config = _waits(Core.nameserver_config)
    update_nameserver_config = _waits(Core.update_nameserver_config)
    wipe_write_perm = _waits(Core.wipe_write_perm)
    add_write_perm = _waits(Core.add_write_perm)
    put_kv = _waits(Core.put_kv)
    get_kv = _waits(Core.get_kv)
    delete_kv = _waits(Core.delete_kv)
    kv_list = _waits(Core.kv_list)

    offset_min = _waits(Core.offset_min)
    offset_max = _waits(Core.offset_max)
    offset_for_time = _waits(Core.offset_for_time)
    earliest_store_time = _waits(Core.earliest_store_time)
    group_offset = _waits(Core.group_offset)
    group_offsets = _waits(Core.group_offsets)
    set_group_offset = _waits(Core.set_group_offset)
    reset_group_offset = _waits(Core.reset_group_offset)
    reset_group_offsets = _waits(Core.reset_group_offsets)
    move_group = _waits(Core.move_group)
    clone_group = _waits(stats.clone_group)
    consume_stats = _waits(Core.consume_stats)
    group_progress = _waits(Core.group_progress)

    groups = _waits(Core.groups)
    group_config = _waits(Core.group_config)
    create_group = _waits(Core.create_group)
    delete_group = _waits(Core.delete_group)
    groups_of_topic = _waits(Core.groups_of_topic)
    topics_of_group = _waits(Core.topics_of_group)
    consumer_connections = _waits(Core.consumer_connections)
    producer_connections = _waits(Core.producer_connections)
    consumer_running_info = _waits(Core.consumer_running_info)

    view_message = _waits(Core.view_message)
    query_messages = _waits(Core.query_messages)
    message_at = _waits(Core.message_at)
    find_message = _waits(messages.find_message)
    message_track = _waits(messages.message_track)
    consume_directly = _waits(messages.consume_directly)

    def check(self) -> None:
        self.io.check("Admin")
        if self._closed:
            raise ClientClosed("this Admin is closed")

    def close(self) -> None:
        """Safe to call twice."""
        if not self._closed:
            self._closed = True
            if self.io.pid == os.getpid():
                release(self, self.io)

    def lost(self, error: RmqkitError) -> None:
        """The I/O thread has ended; what waited was told by it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
