"""Factories of pytest fixtures, for fixtures of your own beside the ready-made ones.

    # conftest.py
    from rmqkit.testing import factories

    two_groups = factories.cluster(groups=2, settings={"flushDiskType": "SYNC_FLUSH"})
    orders = factories.clean("two_groups")
    staging = factories.running("staging.example:9876")

An argument that is left out comes from the command line (`--rmqkit-…`), or else from the ini
options (`rmqkit_…`), or else from the defaults of `rmqkit cluster up`. A factory loads the rest of
rmqkit only when its fixture is used.
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
    """Return a fixture that starts a cluster and stops it at the end: a `RunningCluster`.

    If a node ends by itself, the fixture fails with the last lines of the node's log. If a test
    failed meanwhile, the cluster's folder is kept.

    Args:
        groups: Number of broker groups.
        replicas: Number of brokers in each group.
        nameservers: Number of name servers.
        settings: RocketMQ's settings by name. They override the defaults of `rmqkit cluster up`.
        scope: The scope of the fixture. One cluster starts per scope.

    Example:
        In conftest.py, a pair of brokers for each module:

            from rmqkit.testing import factories

            pair = factories.cluster(replicas=2, scope="module")
    """

    @pytest.fixture(scope=scope)
    def rmqkit_cluster(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[RunningCluster]:
        """A local cluster with its own home and ports (rmqkit.testing.RunningCluster).

        The fixture stops the cluster at the end of its scope.
        """
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
        with _plain_failures():
            running = clusters.start(tmp_path_factory.mktemp("rmqkit"), timeout_s=timeout_s, **asked)
        failed_before = request.session.testsfailed
        try:
            yield running
            deaths = running.deaths()
        finally:
            running.down(keep=request.session.testsfailed > failed_before)
        with _plain_failures(*deaths):
            pass

    return rmqkit_cluster


def running(namesrv: str | None = None, *, scope: Scope = "session") -> Callable[..., Any]:
    """Return a fixture that attaches to a running cluster: a `RunningCluster`.

    The fixture never starts or stops a node. It fails if no name server answers or no broker is
    registered.

    Args:
        namesrv: Name servers, as `host:port;host:port`. Default: the option `--rmqkit-namesrv`, or
            else the ini option `rmqkit_namesrv`, or else the environment variable NAMESRV_ADDR.
        scope: The scope of the fixture.

    Example:
        In conftest.py:

            from rmqkit.testing import factories

            staging = factories.running("staging.example:9876", scope="module")
    """

    @pytest.fixture(scope=scope)
    def rmqkit_running(request: pytest.FixtureRequest) -> RunningCluster:
        """A running cluster, at --rmqkit-namesrv, else ini rmqkit_namesrv, else NAMESRV_ADDR."""
        from rmqkit.testing import clusters

        found = namesrv or _text(request.config, "rmqkit_namesrv") or os.environ.get("NAMESRV_ADDR")
        if not found:
            pytest.fail(
                "no cluster given: set --rmqkit-namesrv, rmqkit_namesrv in the ini file, or NAMESRV_ADDR",
                pytrace=False,
            )
        with _plain_failures():
            attached = clusters.attach(found)
        return attached

    return rmqkit_running


def clean(of: str = "rmqkit_cluster") -> Callable[..., Any]:
    """Return a fixture that gives each test its own part of a cluster: a `Clean`.

    Before and after each test it starts nodes that are down and resumes paused ones. After the test
    it closes the clients and deletes the topics and groups. If a node ended by itself, the test
    fails.

    Args:
        of: Name of the fixture that provides the cluster, a `RunningCluster`.

    Example:
        In conftest.py:

            from rmqkit.testing import factories

            two_groups = factories.cluster(groups=2)
            orders = factories.clean("two_groups")
    """

    @pytest.fixture
    def rmqkit_clean(request: pytest.FixtureRequest) -> Iterator[Clean]:
        """One test's own part of the cluster (rmqkit.testing.Clean).

        After the test the fixture closes the clients and deletes the test's topics and groups.
        """
        from rmqkit.testing.clusters import Clean

        running: RunningCluster = request.getfixturevalue(of)
        with _plain_failures():
            running.put_right()
        part = Clean(running, request.node.name)
        yield part
        deaths = running.deaths()
        with _plain_failures(*deaths):
            running.put_right()
            part.end()

    return rmqkit_clean


# --- options

#: name -> help text; each name is an ini option, and with dashes a command-line option
OPTIONS = {
    "rmqkit_namesrv": "name servers of the running cluster of the fixture rmqkit_running: host:port;host:port",
    "rmqkit_groups": "broker groups of the fixture rmqkit_cluster",
    "rmqkit_replicas": "brokers in each group of the fixture rmqkit_cluster",
    "rmqkit_nameservers": "name servers of the fixture rmqkit_cluster",
    "rmqkit_up_timeout": "seconds within which rmqkit_cluster must be up (60)",
}
SETTINGS = "rmqkit_settings"
SETTINGS_HELP = "settings of the fixture rmqkit_cluster, one key=value per line"


def add_options(parser: pytest.Parser) -> None:
    """Register the options. The pytest plug-in `rmqkit.testing.fixtures` calls this.

    Args:
        parser: pytest's parser of options.
    """
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
def _plain_failures(*earlier: str) -> Iterator[None]:
    """Turn an error of the block into a plain test failure, without a traceback through rmqkit.

    The block also fails if there are `earlier` messages. The failure shows all of them.
    """
    from rmqkit.errors import RmqkitError

    messages = list(earlier)
    try:
        yield
    except (RmqkitError, ValueError) as error:
        messages.append("\n  ".join([f"rmqkit: {error}", *getattr(error, "details", ())]))
    if messages:
        # `from None`: otherwise pytest would show the caught exception too.
        raise pytest.fail.Exception("\n".join(messages), pytrace=False) from None
