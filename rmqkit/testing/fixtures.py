"""The pytest plug-in: the fixtures `rmqkit_cluster`, `rmqkit_clean` and `rmqkit_running`, and their options.

pytest loads this module in every run of an environment where rmqkit is installed, so it imports nothing but pytest and the
fixtures' outsides; rmqkit itself is loaded by the first test that uses one. See `docs/testing.md`.
"""

import pytest

from rmqkit.testing import factories

rmqkit_cluster = factories.cluster()
rmqkit_clean = factories.clean()
rmqkit_running = factories.running()


def pytest_addoption(parser: pytest.Parser) -> None:
    factories.add_options(parser)
