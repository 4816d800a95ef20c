"""Set-up of the interop tests, which run only with RMQKIT_INTEROP=1 (`make interop`).

They need Java, Maven and node, and take some minutes. RMQKIT_INTEROP=full (`make interop-full`)
also runs the tests marked `interop_full`. With RMQKIT_INTEROP_AGAINST=apache the foreign clients'
checks run against Apache's own broker, which verifies the checks themselves.

A test module names its CLIENT and maps features to the checks that prove them (SHOWS). If all
checks of a module passed, the request codes that were seen and the checks are written to
`tried.json` and `features.json`. docs/compatibility.md is generated from these two files.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.interop import apache, clusters, ledger
from tests.interop.clusters import Target

_RUN = os.environ.get("RMQKIT_INTEROP")
if _RUN not in ("1", "full"):
    collect_ignore_glob = ["test_*.py"]

#: Whether each (module, check) passed. A check is named by the parameter `check`, or by the test's
#: name without "test_".
_OUTCOMES: dict[tuple[str, str], bool] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep each module on one worker, and leave out the tests marked `interop_full`.

    The modules that test our client share Apache's cluster, and prove features together. A full run
    leaves out nothing.
    """
    for item in items:
        module = getattr(item, "module", None)
        if module is not None and module.__package__ == __package__ and not item.get_closest_marker("xdist_group"):
            shared = hasattr(module, "OURS_SHOWS") or "apache_cluster" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("apache_cluster" if shared else module.__name__))
    if _RUN == "full":
        return
    left_out = [item for item in items if item.get_closest_marker("interop_full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def against_apache() -> bool:
    return os.environ.get("RMQKIT_INTEROP_AGAINST") == "apache"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop_full: takes long; left out of a short run of the interop tests")
    # The JVMs of these tests live for seconds: C2 would not pay. Those of benchmarks keep it.
    apache.JAVA_SMALL = (*apache.JAVA_SMALL, "-XX:TieredStopAtLevel=1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and isinstance(item, pytest.Function):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        check = params.get("check") or item.originalname.removeprefix("test_")
        _OUTCOMES[item.module.__name__, check] = report.passed
    return report


def passed(module: str, shows: Mapping[str, Sequence[str]]) -> bool:
    """Return whether all checks in `shows` passed and no other check of the module failed."""
    mine = {check: ok for (where, check), ok in _OUTCOMES.items() if where == module}
    return all(mine.values()) and all(mine.get(check, False) for checks in shows.values() for check in checks)


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    lacking = apache.missing_tools()
    if lacking:
        pytest.exit(f"the interop tests need Java 17 and Maven; {lacking}", returncode=3)


@pytest.fixture(scope="session")
def apache_cluster(request: pytest.FixtureRequest) -> Iterator[apache.ApacheCluster]:
    """Run Apache's own name server and broker; record at the end what our client proved there."""
    with clusters.apache_cluster() as (cluster, noted):
        yield cluster
        modules = {getattr(item, "module", None) for item in request.session.items}
        ours = sorted((module for module in modules if hasattr(module, "OURS_SHOWS")), key=str)
        shows: dict[str, list[str]] = {}
        for module in ours:
            for feature, checks in module.OURS_SHOWS.items():
                shows.setdefault(feature, []).extend(checks)
        if noted.codes_of_ours() and ours and all(passed(m.__name__, m.OURS_SHOWS) for m in ours):
            ledger.write_codes("rmqkit against Apache 5.5.0", noted.codes_of_ours())
            ledger.write_checks("rmqkit against Apache 5.5.0", shows)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Target]:
    """Run the cluster that a module's foreign client is tested against.

    It is ours, made by `rmqkit cluster up`, unless RMQKIT_INTEROP_AGAINST=apache.
    """
    if against_apache():
        yield Target(request.getfixturevalue("apache_cluster").namesrv, "apache", ledger.Ledger())
        return
    module = request.module
    with clusters.our_cluster(tmp_path_factory.mktemp("rmqkit-home")) as made:
        yield made
        codes, unmet = made.ledger.codes_of_others(), made.ledger.never_answered()
        print(f"\n{module.CLIENT}: {len(codes)} codes; never answered with success: {unmet}")
        if codes and passed(module.__name__, module.SHOWS):
            ledger.write_codes(module.CLIENT, codes)
            ledger.write_checks(module.CLIENT, module.SHOWS)
