"""Factories of pytest fixtures, for fixtures of one's own beside the ready-made ones.

    # conftest.py
    from rmqkit.testing import factories

    two_groups = factories.cluster(groups=2, settings={"flushDiskType": "SYNC_FLUSH"})
    orders = factories.clean("two_groups")
    staging = factories.running("staging.example:9876")

What a factory is not told is taken from the command line (`--rmqkit-…`), else from the ini options (`rmqkit_…`), else left
to `rmqkit cluster up`. Nothing of rmqkit is loaded until a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from rmqkit.testing.clusters import Clean, RunningCluster

Scope = Literal["session", "package", "module", "class", "function"]


def cluster(
    *,
    groups: int | None = None,
    replicas: int | None = None,
    nameservers: int | None = None,
    settings: Mapping[str, Any] | None = None,
    scope: Scope = "session",
) -> Callable[..., Any]:
    """A fixture that starts a cluster and stops it at the end: a `RunningCluster`.

    `groups`, `replicas` and `nameservers` count nodes, `settings` are RocketMQ's keys over the defaults of `cluster up`.
    """

    @pytest.fixture(scope=scope)
    def rmqkit_cluster(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[RunningCluster]:
        """A cluster on this machine: its own home, any free ports, gone at the end (rmqkit.testing.RunningCluster)."""
        from rmqkit.testing import clusters

        config = request.config
        asked = clusters.given(
            {
                "groups": groups or _number(config, "rmqkit_groups"),
                "replicas": replicas or _number(config, "rmqkit_replicas"),
                "nameservers": nameservers or _number(config, "rmqkit_nameservers"),
                "settings": dict(settings) if settings is not None else _settings(config),
            }
        )
        timeout_s = float(_number(config, "rmqkit_up_timeout") or 60)
        with _told_plainly():
            running = clusters.start(tmp_path_factory.mktemp("rmqkit"), timeout_s=timeout_s, **asked)
        failed_before = request.session.testsfailed
        try:
            yield running
            deaths = running.deaths()
        finally:
            running.down(keep=request.session.testsfailed > failed_before)
        with _told_plainly(*deaths):
            pass

    return rmqkit_cluster


def running(namesrv: str | None = None, *, scope: Scope = "session") -> Callable[..., Any]:
    """A fixture that attaches to a cluster that runs already: a `RunningCluster` that cannot be started or stopped."""

    @pytest.fixture(scope=scope)
    def rmqkit_running(request: pytest.FixtureRequest) -> RunningCluster:
        """A cluster that runs already, at --rmqkit-namesrv, else ini rmqkit_namesrv, else NAMESRV_ADDR."""
        from rmqkit.testing import clusters

        found = namesrv or _text(request.config, "rmqkit_namesrv") or os.environ.get("NAMESRV_ADDR")
        if not found:
            pytest.fail(
                "which cluster? give --rmqkit-namesrv, rmqkit_namesrv in the ini file, or NAMESRV_ADDR", pytrace=False
            )
        with _told_plainly():
            attached = clusters.attach(found)
        return attached

    return rmqkit_running


def clean(of: str = "rmqkit_cluster") -> Callable[..., Any]:
    """A fixture with one test's own part of the cluster of another fixture: a `Clean`."""

    @pytest.fixture
    def rmqkit_clean(request: pytest.FixtureRequest) -> Iterator[Clean]:
        """One test's own part of the cluster: names of its own, clients closed and topics removed after it (Clean)."""
        from rmqkit.testing.clusters import Clean

        running: RunningCluster = request.getfixturevalue(of)
        with _told_plainly():
            running.put_right()
        part = Clean(running, request.node.name)
        yield part
        deaths = running.deaths()
        with _told_plainly(*deaths):
            running.put_right()
            part.end()

    return rmqkit_clean


# --- options

#: name, what it is; each is an ini option, and a flag with dashes
OPTIONS = {
    "rmqkit_namesrv": "name servers of a running cluster, for the fixture rmqkit_running: host:port;host:port",
    "rmqkit_groups": "broker groups of the fixture rmqkit_cluster",
    "rmqkit_replicas": "brokers of each group of the fixture rmqkit_cluster",
    "rmqkit_nameservers": "name servers of the fixture rmqkit_cluster",
    "rmqkit_up_timeout": "seconds a cluster has to come up (60)",
}
SETTINGS = "rmqkit_settings"
SETTINGS_HELP = "settings of the fixture rmqkit_cluster, a key=value a line"


def add_options(parser: pytest.Parser) -> None:
    """Called by the plug-in, `rmqkit.testing.fixtures`."""
    group = parser.getgroup("rmqkit", "rmqkit: clusters to test against")
    for name, what in OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=what)
        parser.addini(name, what)
    group.addoption("--rmqkit-set", dest=SETTINGS, action="append", metavar="KEY=VALUE", help="a setting of rmqkit_cluster")
    parser.addini(SETTINGS, SETTINGS_HELP, type="linelist")


def _text(config: pytest.Config, name: str) -> str:
    return str(config.getoption(name) or config.getini(name) or "").strip()


def _number(config: pytest.Config, name: str) -> int | None:
    text = _text(config, name)
    if not text:
        return None
    if not text.isdigit() or not int(text):
        pytest.fail(f"{name} = {text}: must be a number above 0", pytrace=False)
    return int(text)


def _settings(config: pytest.Config) -> dict[str, Any]:
    from rmqkit.cluster.layout.description import parse_settings

    pairs = [*config.getini(SETTINGS), *(config.getoption(SETTINGS) or ())]
    return dict(parse_settings(pair for pair in pairs if pair.strip()))


@contextmanager
def _told_plainly(*already: str) -> Iterator[None]:
    """Fail with what is wrong, and with what was wrong already, without a traceback through rmqkit."""
    from rmqkit.errors import RmqkitError

    told = list(already)
    try:
        yield
    except (RmqkitError, ValueError) as error:
        told.append("\n  ".join([f"rmqkit: {error}", *getattr(error, "details", ())]))
    if told:
        # `from None`: pytest would show what was caught as well.
        raise pytest.fail.Exception("\n".join(told), pytrace=False) from None
