"""Admin: administration of a cluster. Any thread may use it; each method waits for its result.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("T", queue_nums=4)

The methods are coroutines of `rmqkit.client.admin`: of the class `AdminCore`, and functions of
`messages`, `stats`, `dead_letters`, `transactions`, `pop`, `access` and `controllers`. `AdminFlows`
lists them, and `Flow` makes a method of each.
"""

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from inspect import signature
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from rmqkit.api.io_thread import User, acquire, release
from rmqkit.client.admin import access, controllers, messages, pop, stats, transactions
from rmqkit.client.admin import dead_letters as letters
from rmqkit.client.admin.groups import AdminCore as Core
from rmqkit.client.flow import Deferred, start
from rmqkit.client_keys import choose_keys
from rmqkit.errors import ClientClosed
from rmqkit.tls.client_choice import Tls

P = ParamSpec("P")
R = TypeVar("R")


class BlockingAdmin:
    """Base of the Admin whose methods wait for their results."""


class AsyncAdmin:
    """Base of the Admin whose methods are coroutines (`rmqkit.aio`)."""


class Flow(Generic[P, R]):
    """Descriptor: makes a method of an Admin from a coroutine of the core.

    The method starts the coroutine through `answer` of the Admin.
    """

    def __init__(self, method: Callable[Concatenate[Core, P], Coroutine[Any, Any, R]]) -> None:
        wanted = signature(method)

        @wraps(method)
        def call(admin: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            admin.check()
            wanted.bind(admin.core, *args, **kwargs)  # wrong arguments raise here, not in the I/O thread
            return admin.answer(method.__name__, lambda: start(method(admin.core, *args, **kwargs)))

        self._call = call

    @overload
    def __get__(self, admin: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, admin: BlockingAdmin, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, admin: AsyncAdmin, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, admin: BlockingAdmin | AsyncAdmin | None, owner: type) -> Callable[..., Any]:
        return self._call if admin is None else MethodType(self._call, admin)


class AdminFlows:
    """The methods that both forms of Admin share."""

    cluster_info = Flow(Core.cluster_info)
    topics = Flow(Core.topics)
    topics_of_cluster = Flow(Core.topics_of_cluster)
    route = Flow(Core.route)
    queues = Flow(Core.queues)
    masters = Flow(Core.masters)
    broker_address = Flow(Core.broker_address)
    timer_counts = Flow(Core.timer_counts)

    create_topic = Flow(Core.create_topic)
    delete_topic = Flow(Core.delete_topic)
    topic_config = Flow(Core.topic_config)
    topic_stats = Flow(Core.topic_stats)
    set_topic_perm = Flow(stats.set_topic_perm)
    topic_rates = Flow(stats.topic_rates)
    clean_unused_topics = Flow(stats.clean_unused_topics)
    clean_expired_queues = Flow(stats.clean_expired_queues)

    broker_config = Flow(Core.broker_config)
    update_broker_config = Flow(Core.update_broker_config)
    broker_runtime = Flow(Core.broker_runtime)
    broker_stats = Flow(stats.broker_stats)
    ask_broker = Flow(Core.ask_broker)
    ha_status = Flow(Core.ha_status)

    nameserver_config = Flow(Core.nameserver_config)
    update_nameserver_config = Flow(Core.update_nameserver_config)
    wipe_write_perm = Flow(Core.wipe_write_perm)
    add_write_perm = Flow(Core.add_write_perm)
    put_kv = Flow(Core.put_kv)
    get_kv = Flow(Core.get_kv)
    delete_kv = Flow(Core.delete_kv)
    kv_list = Flow(Core.kv_list)

    offset_min = Flow(Core.offset_min)
    offset_max = Flow(Core.offset_max)
    offset_for_time = Flow(Core.offset_for_time)
    earliest_store_time = Flow(Core.earliest_store_time)
    group_offset = Flow(Core.group_offset)
    group_offsets = Flow(Core.group_offsets)
    set_group_offset = Flow(Core.set_group_offset)
    reset_group_offset = Flow(Core.reset_group_offset)
    reset_group_offsets = Flow(Core.reset_group_offsets)
    move_group = Flow(Core.move_group)
    clone_group = Flow(stats.clone_group)
    consume_stats = Flow(Core.consume_stats)
    group_progress = Flow(Core.group_progress)

    groups = Flow(Core.groups)
    group_config = Flow(Core.group_config)
    create_group = Flow(Core.create_group)
    delete_group = Flow(Core.delete_group)
    groups_of_topic = Flow(Core.groups_of_topic)
    topics_of_group = Flow(Core.topics_of_group)
    consumer_connections = Flow(Core.consumer_connections)
    producer_connections = Flow(Core.producer_connections)
    consumer_running_info = Flow(Core.consumer_running_info)

    view_message = Flow(Core.view_message)
    query_messages = Flow(Core.query_messages)
    message_at = Flow(Core.message_at)
    find_message = Flow(messages.find_message)
    message_track = Flow(messages.message_track)
    consume_directly = Flow(messages.consume_directly)

    dead_letters = Flow(letters.dead_letters)
    requeue = Flow(letters.requeue)
    requeue_step = Flow(letters.requeue_step)

    prepared_transactions = Flow(transactions.prepared_transactions)
    end_transaction = Flow(transactions.end_transaction)
    resume_transaction = Flow(transactions.resume_transaction)

    pop_in_flight = Flow(pop.pop_in_flight)
    request_modes = Flow(pop.request_modes)
    set_request_mode = Flow(pop.set_request_mode)

    create_user = Flow(access.create_user)
    update_user = Flow(access.update_user)
    delete_user = Flow(access.delete_user)
    users = Flow(access.users)
    put_rules = Flow(access.put_rules)
    delete_rules = Flow(access.delete_rules)
    rules = Flow(access.rules)
    all_rules = Flow(access.all_rules)

    controller_metadata = Flow(controllers.controller_metadata)
    controller_leader = Flow(controllers.controller_leader)
    broker_sets = Flow(controllers.broker_sets)
    elect_master = Flow(controllers.elect_master)
    clean_brokers = Flow(controllers.clean_brokers)


class Admin(User, BlockingAdmin, AdminFlows):
    """Administers a cluster: topics, groups, offsets, messages and configuration.

    Any thread may use an admin. Each method waits for its result. Methods of several requests stop
    at the first error.

    A parameter `broker` is a broker name, which means its master, or `name:id`, `name-id` or
    `host:port`. Offsets are queue offsets. Times are Unix times in ms.

    Args:
        namesrv: Name servers, as `host:port;host:port` or a list. Default: the environment variable
            NAMESRV_ADDR, or else 127.0.0.1:9876.
        instance_name: Part of the client id, `<ip>@<instance_name>`. By default all objects of a
            process with the same name servers share one client id.
        tls: Whether to connect with TLS: true, false, the path of a file with Java's `tls.client.*`
            keys, or a mapping of them. Default: the environment variable RMQKIT_TLS, or else false.
        access_key: User in whose name requests are signed. Default: RMQKIT_ACCESS_KEY, else the
            file that RMQKIT_ACCESS_FILE names, else requests are not signed.
        secret_key: Password of this user. Default: RMQKIT_SECRET_KEY, else the same file.
        security_token: Token of temporary keys, which some services demand.

    Raises:
        ClientError: If a name server address is invalid. Methods raise it too, most often one of
            its subclasses: BrokerError (a peer answered with an error code), PeerUnreachable (no
            response) or NoRoute (unknown topic).
        ConfigError: If a file of `tls` cannot be used, or a key is missing.

    Example:
        Create a topic, and print how far a group is behind:

            from rmqkit import Admin

            with Admin("127.0.0.1:9876") as admin:
                admin.create_topic("orders", queue_nums=4)
                for queue, progress in admin.consume_stats("billing").items():
                    print(queue, progress.broker_offset - progress.consumer_offset)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        instance_name: str | None = None,
        tls: Tls = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
    ) -> None:
        self._closed = False
        self.io = acquire(self, namesrv, instance_name, tls=tls, keys=choose_keys(access_key, secret_key, security_token))
        self.core = Core(self.io.client)

    def answer(self, name: str, ask: Callable[[], Deferred[R]]) -> R:
        """Run a request in the I/O thread and wait for its result. The methods use it.

        Args:
            name: The name of the method, for error messages.
            ask: Starts the request.
        """
        return self.io.wait(f"Admin.{name}()", ask)

    def check(self) -> None:
        """Raise ClientClosed or ClientForked if the admin cannot be used."""
        self.io.check("Admin")
        if self._closed:
            raise ClientClosed("this Admin is closed")

    def close(self) -> None:
        """Close the admin. Safe to call twice."""
        if not self._closed:
            self._closed = True
            if self.io.pid == os.getpid():
                release(self, self.io)
