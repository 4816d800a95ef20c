"""What the fixtures hand out: a cluster (`RunningCluster`), and a test's part of it (`Clean`).

`rmqkit.cluster` starts a cluster in a temporary home, on free ports and with a lifeline: a pipe
whose write end only this process has. Nodes end when the write end is closed. So a pytest process
that is killed leaves no node behind.

A test may break its cluster (`cluster.kill("master")`). Nodes that a test stopped are started again
before the next clean test. A node that ended by itself is a bug: the fixtures fail the test during
which it ended, and show the last lines of the node's log.

    def test_a_takeover(rmqkit_clean):
        rmqkit_clean.cluster.kill("master")
        ...
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rmqkit.errors import ClientError, RmqkitError
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.api import Admin, Producer, PullConsumer, PushConsumer
    from rmqkit.cluster import Cluster

#: most characters of a test's name in its prefix. A topic has at most 127 characters: this leaves
#: room for the token, the name given by the test, and %RETRY%
PREFIX_SIZE_MAX = 48
LOG_LINES = 12
#: a cluster of tests looks for free ports from FIRST_PORT plus a random multiple of PORT_STRIDE.
#: All of these ports are below those that systems use for outgoing connections
FIRST_PORT, PORT_STRIDE, STRIDES = 12_000, 200, 100
#: prefixes of the topics that brokers create for a group
GROUP_TOPICS = (RETRY_PREFIX, DLQ_PREFIX)

C = TypeVar("C", bound="Closable")


class Closable(Protocol):
    """A client, or anything else with a `close()`."""

    def close(self) -> None: ...


class RunningCluster:
    """A cluster that a test can use. The fixtures create it.

    It is either a cluster that this session started, which tests may break and repair, or one that
    runs elsewhere, which they can only use.

    Args:
        namesrv: Addresses of the name servers, as `host:port;host:port`.
        cluster: The cluster, if this session started it. None: it runs elsewhere.
        lifeline: File descriptors of the pipe that keeps the nodes alive, read end first.

    Attributes:
        namesrv: Addresses of the name servers, as clients take them.

    Example:
        Kill the master of the session's cluster, and repair it:

            def test_a_restart(rmqkit_cluster):
                rmqkit_cluster.cluster.kill("master")
                rmqkit_cluster.put_right()
    """

    def __init__(self, namesrv: str, cluster: Cluster | None = None, lifeline: tuple[int, int] | None = None) -> None:
        self.namesrv = namesrv
        self._cluster = cluster
        self._lifeline = lifeline

    @property
    def cluster(self) -> Cluster:
        """The `rmqkit.cluster.Cluster`, to inspect or to break.

        Its `kill`, `stop`, `pause`, `start`, … take a selector such as "master". Raises RmqkitError
        if the cluster runs elsewhere.
        """
        if self._cluster is None:
            raise RmqkitError(
                f"the cluster at {self.namesrv} runs elsewhere: tests can use it, but not start or stop its nodes"
            )
        return self._cluster

    @property
    def env(self) -> dict[str, str]:
        """The environment for a process that uses this cluster.

        It is this process's environment with NAMESRV_ADDR and, if this session started the cluster,
        RMQKIT_HOME.
        """
        mine = {"NAMESRV_ADDR": self.namesrv}
        if self._cluster is not None:
            mine["RMQKIT_HOME"] = str(self._cluster.home)
        return {**os.environ, **mine}

    def put_right(self) -> None:
        """Start nodes that are down and resume nodes that are paused.

        If there are none, this takes about a millisecond. It does nothing to a cluster that runs
        elsewhere. Raises RmqkitError if a node does not become ready.
        """
        if self._cluster is None:
            return
        self._cluster.resume("all")
        self._cluster.start("all")

    def deaths(self) -> list[str]:
        """Return the nodes that ended by themselves, each as a text with its last log lines.

        The list is empty for a cluster that runs elsewhere.
        """
        if self._cluster is None:
            return []
        from rmqkit.cluster import processes
        from rmqkit.cluster.layout import state

        known = (state.load(self._cluster.folder) or state.ClusterState()).nodes
        running = self._cluster.running()
        texts = []
        for node, started in known.items():
            if started.asked == "up" and node not in running:
                lines = processes.last_lines(self._cluster.node_folder(node), LOG_LINES)
                texts.append("\n".join([f"{node} ended by itself; the end of its log:", *lines]))
        return texts

    def down(self, *, keep: bool) -> None:
        """Stop a cluster that this session started. Do nothing to one that runs elsewhere.

        Args:
            keep: Whether to keep the cluster's folder, with the logs of its nodes.
        """
        if self._cluster is None:
            return
        home = self._cluster.home
        try:
            self._cluster.down(purge=not keep)
        finally:
            for fd in self._lifeline or ():
                os.close(fd)
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def start(home: Path, *, timeout_s: float, **asked: Any) -> RunningCluster:
    """Start a cluster under `home`.

    Args:
        home: The folder for everything that the cluster writes.
        timeout_s: Seconds within which all nodes must be ready.
        **asked: Fields of `rmqkit.cluster.Description`.

    Raises:
        RmqkitError: If the cluster cannot be started.
    """
    from rmqkit.cluster import Cluster

    # Concurrent sessions should use different ports: a restarted node needs its former port again.
    asked = {"base_port": FIRST_PORT + PORT_STRIDE * secrets.randbelow(STRIDES), **asked}
    reading, writing = os.pipe()
    try:
        cluster = Cluster("pytest", home=home, lifeline=reading)
        cluster.up(timeout_s=timeout_s, any_port=True, **asked)
    except BaseException:
        os.close(reading)
        os.close(writing)
        raise
    return RunningCluster(cluster.namesrv, cluster, (reading, writing))


def attach(namesrv: str) -> RunningCluster:
    """Attach to a cluster that runs already.

    Raises RmqkitError if no name server answers or no broker is registered.
    """
    from rmqkit.api import Admin

    with Admin(namesrv) as admin:
        if not admin.masters():
            raise RmqkitError(f"the name server {namesrv} answers, but no broker is registered there")
    return RunningCluster(namesrv)


class Clean:
    """One test's own part of a cluster: unique names, and clients that the fixture closes.

    The fixture `rmqkit_clean` creates one for each test and calls `end` after it.

    Args:
        running: The cluster.
        test_name: Name of the test; the prefix begins with it.

    Attributes:
        running: The cluster, as a `RunningCluster`.
        namesrv: Addresses of its name servers, as clients take them.
        prefix: The prefix of every topic and group of this test. `end` deletes all topics and
            groups that begin with it.

    Example:
        Send a message and read it:

            def test_an_order_arrives(rmqkit_clean):
                topic = rmqkit_clean.topic("orders")
                reader = rmqkit_clean.pull_consumer(consume_from="first")
                reader.subscribe(topic)
                rmqkit_clean.producer().send(Message(topic, b"one"))
                assert [each.body for each in reader.poll(timeout_ms=10_000)] == [b"one"]
    """

    def __init__(self, running: RunningCluster, test_name: str) -> None:
        self.running = running
        self.namesrv = running.namesrv
        word = re.sub(r"[^a-zA-Z0-9_]+", "-", test_name).strip("-")[:PREFIX_SIZE_MAX]
        self.prefix = f"{word}-{secrets.token_hex(4)}-"
        self._open: list[Any] = []
        self._admin: Admin | None = None

    @property
    def cluster(self) -> Cluster:
        """The `rmqkit.cluster.Cluster`, to inspect or to break.

        Raises RmqkitError if the cluster runs elsewhere.
        """
        return self.running.cluster

    @property
    def admin(self) -> Admin:
        """The `rmqkit.Admin` of this test, created at first use."""
        if self._admin is None:
            from rmqkit.api import Admin

            self._admin = self.closes(Admin(self.namesrv))
        return self._admin

    def name(self, name: str) -> str:
        """Return a name that only this test uses: `prefix` plus `name`.

        Use it for a topic that a send will create, or for a group.

        Args:
            name: What follows the prefix.
        """
        return self.prefix + name

    def topic(self, name: str = "topic", *, queue_nums: int = 4, **options: Any) -> str:
        """Create a topic that only this test uses, and return its full name.

        Args:
            name: What follows the prefix.
            queue_nums: Number of queues on each broker.
            **options: Further arguments of `Admin.create_topic`.

        Raises:
            ClientError: If the topic cannot be created.
        """
        topic = self.name(name)
        self.admin.create_topic(topic, queue_nums=queue_nums, **options)
        return topic

    def group(self, name: str = "group") -> str:
        """Return the name of a group that only this test uses.

        Brokers create the group when its first consumer starts.

        Args:
            name: What follows the prefix.
        """
        return self.name(name)

    def producer(self, group: str | None = None, **options: Any) -> Producer:
        """Create a producer that is closed at the end of the test.

        Args:
            group: The producer group. Default: a name that only this test uses.
            **options: Further arguments of `rmqkit.Producer`.
        """
        from rmqkit.api import Producer

        return self.closes(Producer(group or self.name("producer"), namesrv=self.namesrv, **options))

    def pull_consumer(self, group: str | None = None, **options: Any) -> PullConsumer:
        """Create a pull consumer that is closed at the end of the test.

        Args:
            group: The consumer group. Default: `group()`, so two consumers share one group.
            **options: Further arguments of `rmqkit.PullConsumer`.
        """
        from rmqkit.api import PullConsumer

        return self.closes(PullConsumer(group or self.group(), namesrv=self.namesrv, **options))

    def push_consumer(self, group: str | None = None, **options: Any) -> PushConsumer:
        """Create a push consumer that is closed at the end of the test.

        Args:
            group: The consumer group. Default: `group()`, so two consumers share one group.
            **options: Further arguments of `rmqkit.PushConsumer`.
        """
        from rmqkit.api import PushConsumer

        return self.closes(PushConsumer(group or self.group(), namesrv=self.namesrv, **options))

    def closes(self, client: C) -> C:
        """Close `client` at the end of the test, before the topics are deleted. Return it.

        The last client is closed first.

        Args:
            client: Any object with a `close()`.
        """
        self._open.append(client)
        return client

    def end(self) -> None:
        """Close the clients and delete the test's topics and groups. The fixture calls this.

        Raises:
            RmqkitError: If a client cannot be closed or a name cannot be deleted. The other names
                are deleted nevertheless.
        """
        admin = self.admin
        clients, self._open = self._open, []
        for client in reversed(clients):
            if client is not admin:
                client.close()
        try:
            self._remove(admin)
        finally:
            admin.close()

    def _remove(self, admin: Admin) -> None:
        # Topics first: deleting a topic ends its waiting pulls. After the deletion of a group, such
        # a pull would create the group again.
        owned = (self.prefix, *(marker + self.prefix for marker in GROUP_TOPICS))
        _each([topic for topic in admin.topics() if topic.startswith(owned)], admin.delete_topic)
        groups = [group for group in admin.groups() if group.startswith(self.prefix)]
        _each(groups, lambda group: admin.delete_group(group, clean_offset=True))


def _each(names: Sequence[str], remove: Callable[[str], None]) -> None:
    """Call `remove` for each name. Continue after errors, and raise the first one at the end."""
    errors: list[ClientError] = []
    for name in names:
        try:
            remove(name)
        except ClientError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that have a value: neither None nor empty."""
    return {name: value for name, value in options.items() if value not in (None, "", {})}
