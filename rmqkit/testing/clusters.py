"""What the pytest fixtures hand out: a cluster to test against (`RunningCluster`), and one test's part of it (`Clean`).

A cluster of our own is started by `rmqkit.cluster` in a temporary home, on any free ports, on a lifeline: a pipe whose
writing end only this process has. Its nodes end when that end is gone, so a pytest that is killed leaves none behind.

A test may break its cluster (`cluster.kill("master")`): what was asked to go down is started again before the next clean
test. A node that ended by itself is a bug somewhere: the fixtures let the test fail that it happened in, with the last
lines of the node's log.
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

#: a topic has 127 characters at most; this leaves room for what the test calls it, and for %RETRY%
PREFIX_SIZE_MAX = 48
LOG_LINES = 12
#: where clusters of tests begin to look for free ports: below the ports that systems give to outgoing connections
FIRST_PORT, PORT_STRIDE, STRIDES = 12_000, 200, 100
#: what brokers put before a group's name for topics of their own making
GROUP_TOPICS = (RETRY_PREFIX, DLQ_PREFIX)

C = TypeVar("C", bound="Closable")


class Closable(Protocol):
    """A client, or anything else with a `close()`."""

    def close(self) -> None: ...


class RunningCluster:
    """A cluster that answers. `cluster` is None for one that runs elsewhere, which cannot be broken from here."""

    def __init__(self, namesrv: str, cluster: Cluster | None = None, lifeline: tuple[int, int] | None = None) -> None:
        #: addresses of the name servers, joined by `;`: what clients take as `namesrv`
        self.namesrv = namesrv
        self._cluster = cluster
        self._lifeline = lifeline

    @property
    def cluster(self) -> Cluster:
        """To look at it, or to break it: `kill`, `stop`, `pause`, `start` … with a selector (`rmqkit.cluster.Cluster`)."""
        if self._cluster is None:
            raise RmqkitError(f"the cluster at {self.namesrv} runs elsewhere: it can be used, not started or stopped")
        return self._cluster

    @property
    def env(self) -> dict[str, str]:
        """The environment of a process that is to use this cluster: this process's, pointing there."""
        mine = {"NAMESRV_ADDR": self.namesrv}
        if self._cluster is not None:
            mine["RMQKIT_HOME"] = str(self._cluster.home)
        return {**os.environ, **mine}

    def put_right(self) -> None:
        """Start what is down and let go on what is paused. Nothing to do costs about a millisecond."""
        if self._cluster is None:
            return
        self._cluster.resume("all")
        self._cluster.start("all")

    def deaths(self) -> list[str]:
        """Nodes that should run and do not, each with its last log lines."""
        if self._cluster is None:
            return []
        from rmqkit.cluster import processes
        from rmqkit.cluster.layout import state

        known = (state.load(self._cluster.folder) or state.ClusterState()).nodes
        running = self._cluster.running()
        told = []
        for node, started in known.items():
            if started.asked == "up" and node not in running:
                lines = processes.last_lines(self._cluster.node_folder(node), LOG_LINES)
                told.append("\n".join([f"{node} ended by itself; the end of its log:", *lines]))
        return told

    def down(self, *, keep: bool) -> None:
        """Stop a cluster of our own; with `keep` its folder stays, to look at."""
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
    """A cluster of our own under `home`; `asked` are fields of `rmqkit.cluster.Description`. Raises RmqkitError."""
    from rmqkit.cluster import Cluster

    # Sessions side by side keep out of each other's way: a node that is started again wants the port it had.
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
    """A cluster that runs already. Raises RmqkitError when it does not answer, or has no broker."""
    from rmqkit.api import Admin

    with Admin(namesrv) as admin:
        if not admin.masters():
            raise RmqkitError(f"the name server {namesrv} answers, but no broker is registered there")
    return RunningCluster(namesrv)


class Clean:
    """One test's own part of a cluster: names that nobody else has, and clients that are closed at its end."""

    def __init__(self, running: RunningCluster, test_name: str) -> None:
        self.running = running
        self.namesrv = running.namesrv
        word = re.sub(r"[^a-zA-Z0-9_]+", "-", test_name).strip("-")[:PREFIX_SIZE_MAX]
        #: every topic and group of this test begins with it, and what begins with it is removed after the test
        self.prefix = f"{word}-{secrets.token_hex(4)}-"
        self._open: list[Any] = []
        self._admin: Admin | None = None

    @property
    def cluster(self) -> Cluster:
        return self.running.cluster

    @property
    def admin(self) -> Admin:
        """An `rmqkit.Admin` of this test."""
        if self._admin is None:
            from rmqkit.api import Admin

            self._admin = self.closes(Admin(self.namesrv))
        return self._admin

    def name(self, name: str) -> str:
        """A name of this test's own, for a topic that is to be created by a send, or for a group."""
        return self.prefix + name

    def topic(self, name: str = "topic", *, queue_nums: int = 4, **options: Any) -> str:
        """Create a topic that only this test has; its name. `options` are those of `Admin.create_topic`."""
        topic = self.name(name)
        self.admin.create_topic(topic, queue_nums=queue_nums, **options)
        return topic

    def group(self, name: str = "group") -> str:
        """The name of a group that only this test has; it comes into being with its first consumer."""
        return self.name(name)

    def producer(self, group: str | None = None, **options: Any) -> Producer:
        from rmqkit.api import Producer

        return self.closes(Producer(group or self.name("producer"), namesrv=self.namesrv, **options))

    def pull_consumer(self, group: str | None = None, **options: Any) -> PullConsumer:
        from rmqkit.api import PullConsumer

        return self.closes(PullConsumer(group or self.group(), namesrv=self.namesrv, **options))

    def push_consumer(self, group: str | None = None, **options: Any) -> PushConsumer:
        from rmqkit.api import PushConsumer

        return self.closes(PushConsumer(group or self.group(), namesrv=self.namesrv, **options))

    def closes(self, client: C) -> C:
        """Have something closed at the end of the test, before the topics go; the last one first."""
        self._open.append(client)
        return client

    def end(self) -> None:
        """Close what is open and remove what the test has made. Raises RmqkitError."""
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
        # Topics first: a pull that still waits at the broker ends with its topic, and would bring its group back.
        owned = (self.prefix, *(marker + self.prefix for marker in GROUP_TOPICS))
        _each([topic for topic in admin.topics() if topic.startswith(owned)], admin.delete_topic)
        groups = [group for group in admin.groups() if group.startswith(self.prefix)]
        _each(groups, lambda group: admin.delete_group(group, clean_offset=True))


def _each(names: Sequence[str], remove: Callable[[str], None]) -> None:
    """Remove all that can be; the first error is raised at the end."""
    errors: list[ClientError] = []
    for name in names:
        try:
            remove(name)
        except ClientError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value not in (None, "", {})}
