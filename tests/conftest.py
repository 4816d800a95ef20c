"""Settings of the whole suite: Hypothesis profiles, the garbage collector, common fixtures.

Profile `fast` is for every run: few examples, always the same ones. `deep` is for a run overnight.
`tests/helpers/workers.py` shares the tests between workers.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import flows, workers

# Keep compiled modules whatever the environment says: the tests start hundreds of interpreters,
# and each would take twice as long without.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting imports 900 modules and creates an object per test. All of them stay, so a garbage
# collection would find nothing.
gc.disable()

settings.register_profile(
    "fast",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    max_examples=5000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("RMQKIT_HYPOTHESIS", "fast"))


# First, because xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        workers.share_out(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the large heap of the tests, so that later collections skip it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def valid_flows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from flows.validated(monkeypatch)


@pytest.fixture
def heeds_ctrl_c():
    """SIGINT interrupts this process and those it starts, as in a foreground job.

    The shell may have started the suite as a background job, with SIGINT ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def no_clusters_of_the_user(tmp_path_factory):
    """Hide clusters that already run on this machine from commands run inside this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMQKIT_HOME", str(tmp_path_factory.mktemp("home") / "none"))
        yield
