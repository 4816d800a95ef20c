"""The pytest plug-in: the fixtures `rmqkit_cluster`, `rmqkit_clean` and `rmqkit_running`.

It also registers their options. pytest loads this module in every run where rmqkit is installed.
So it imports only pytest and the factories. The first test that uses a fixture loads the rest of
rmqkit. See `docs/testing.md`.
"""

import pytest

from rmqkit.testing import factories

rmqkit_cluster = factories.cluster()
"""A cluster of real processes on this machine, as a `RunningCluster`. Scope: session.

The first test that uses it starts the cluster, with a temporary home and on free ports. The end of
the session stops it. Options such as `--rmqkit-groups` set its size.

Example:
    Test a program that reads the environment:

        def test_my_service(rmqkit_cluster):
            done = subprocess.run(["my-service", "--once"], env=rmqkit_cluster.env)
            assert done.returncode == 0
"""

rmqkit_clean = factories.clean()
"""One test's own part of `rmqkit_cluster`, as a `Clean`. Scope: function.

Its topics and groups have names that no other test uses. After the test the fixture closes the
clients and deletes the topics and groups.

Example:
    Send a message and read it:

        def test_an_order_arrives(rmqkit_clean):
            topic = rmqkit_clean.topic("orders")
            reader = rmqkit_clean.pull_consumer(consume_from="first")
            reader.subscribe(topic)
            rmqkit_clean.producer().send(Message(topic, b"one"))
            assert [each.body for each in reader.poll(timeout_ms=10_000)] == [b"one"]
"""

rmqkit_running = factories.running()
"""A cluster that runs already, as a `RunningCluster`. Scope: session.

The fixture takes the name servers from `--rmqkit-namesrv`, the ini option `rmqkit_namesrv`, or the
environment variable NAMESRV_ADDR. It never starts or stops a node.

Example:
    Check a staging cluster:

        def test_staging_has_its_masters(rmqkit_running):
            with Admin(rmqkit_running.namesrv) as admin:
                assert set(admin.masters()) == {"broker-a", "broker-b"}
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options of the fixtures with pytest.

    Args:
        parser: pytest's parser of options.
    """
    factories.add_options(parser)
