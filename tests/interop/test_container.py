"""mqadmin adds and removes a broker of our container.

Apache's commands are `AddBrokerSubCommand` and `RemoveBrokerSubCommand`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.process import Container
from tests.helpers import ports
from tests.interop.mqadmin import Mqadmin


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    lifeline, own_end = os.pipe()
    made = Container(tmp_path / "container", ports.free_base(range(-2, 60)), lifeline)
    yield made
    made.stop()
    os.close(lifeline)
    os.close(own_end)


def test_mqadmin_adds_and_removes_brokers(container: Container, tmp_path: Path) -> None:
    a, b = container.config("a", 0), container.config("b", 1)
    container.start(a)
    (tmp_path / "mqadmin").mkdir()
    mqadmin = Mqadmin("127.0.0.1:1", tmp_path / "mqadmin")
    at = f"127.0.0.1:{container.at}"
    try:
        assert f"add broker to {at} success" in mqadmin("addBroker", "-c", at, "-b", str(b)).out
        assert container.brokers() == {"a": "serving", "b": "serving"}
        assert "is in this process already" in mqadmin("addBroker", "-c", at, "-b", str(b)).err
        assert f"remove broker from {at} success" in mqadmin("removeBroker", "-c", at, "-b", "DefaultCluster:a:0").out
        assert container.brokers() == {"b": "serving"}
        assert "Broker not exist" in mqadmin("removeBroker", "-c", at, "-b", "DefaultCluster:a:0").err
    finally:
        mqadmin.close()
