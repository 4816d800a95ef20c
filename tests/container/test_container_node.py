"""The container's own port: who may send which request, and when it is answered.

Source: `container/.../BrokerContainerProcessor.java`.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from rmqkit.container import BrokerKey, BrokerSummary, Container, ContainerNode
from rmqkit.container.node import ANSWER_MS, CHANGES_MAX, ChangeResult
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.helpers.script import Script


class Brokers:
    """A broker container whose changes end only when the test ends them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def add(self, path: str, then: Any) -> None:
        self.asked.append((path, then))

    def remove(self, identity: BrokerKey, then: Any) -> None:
        self.asked.append((identity, then))

    def shown(self) -> list[BrokerSummary]:
        return [BrokerSummary("c", "broker-a", 0, "127.0.0.1:10911", "serving", "/a.toml", "/a")]

    def settings(self) -> dict[str, str]:
        return {"listenPort": "10811", "brokerConfigPaths": "/a.toml:/b.toml"}


REMOVE = {"brokerName": "broker-a", "brokerClusterName": "c", "brokerId": "1"}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def container(brokers: Brokers, **more: Any) -> Script[ContainerNode]:
    return Script(lambda ports: ContainerNode("container", ports, brokers, limits=NetworkLimits(), **more))


@pytest.fixture
def script(brokers: Brokers) -> Script[ContainerNode]:
    return container(brokers)


def end(script: Script[ContainerNode], brokers: Brokers, outcome: ChangeResult) -> None:
    _what, then = brokers.asked.pop(0)
    then(outcome)
    script.turn()


def test_an_added_broker_is_answered_when_it_serves(script, brokers):
    client = script.connect()
    client.tell(RequestCode.ADD_BROKER, {"configPath": "/c.toml"})
    assert client.received == []
    assert brokers.asked[0][0] == "/c.toml"
    end(script, brokers, ChangeResult())
    (answer,) = client.received
    assert (answer.code, answer.remark) == (0, None)


def test_one_that_takes_long_is_answered_before_the_asker_gives_up(script, brokers):
    client = script.connect()
    client.tell(RequestCode.ADD_BROKER, {"configPath": "/c.toml"})
    script.advance(ANSWER_MS - 1)
    assert client.received == []
    script.advance(1)
    (answer,) = client.received
    assert (answer.code, answer.remark) == (0, "the broker was started and is not serving yet: it recovers")
    end(script, brokers, ChangeResult("damaged"))
    assert len(client.received) == 1


def test_a_broker_is_removed_by_its_identity(script, brokers):
    client = script.connect()
    client.tell(RequestCode.REMOVE_BROKER, REMOVE)
    assert brokers.asked[0][0] == BrokerKey("c", "broker-a", 1)
    end(script, brokers, ChangeResult("Broker not exist", ResponseCode.BROKER_NOT_EXIST))
    assert (client.received[0].code, client.received[0].remark) == (211, "Broker not exist")


@pytest.mark.parametrize("path", [None, "", "  ", "x" * 5000])
def test_a_path_that_is_none_is_answered_at_once(script, brokers, path):
    answer = script.connect().ask(RequestCode.ADD_BROKER, {} if path is None else {"configPath": path})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert brokers.asked == []


def test_another_machine_may_only_look(script, brokers):
    client = script.connect(peer="10.0.0.9:5000")
    client.conn.local = Address("10.0.0.1", 10811)
    for code, ext in ((RequestCode.ADD_BROKER, {"configPath": "/c.toml"}), (RequestCode.REMOVE_BROKER, REMOVE)):
        answer = client.ask(code, ext)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "remoteConfigUpdateEnable" in answer.remark
    assert brokers.asked == []


def test_an_error_sent_to_another_machine_does_not_quote_a_file(brokers):
    script = container(brokers, remote_update=True)
    client = script.connect(peer="10.0.0.9:5000")
    client.conn.local = Address("10.0.0.1", 10811)
    client.tell(RequestCode.ADD_BROKER, {"configPath": "/c.toml"})
    end(script, brokers, ChangeResult("config: unknown key 'secret'", for_others="the log says why"))
    assert client.received[0].remark == "the log says why"


def test_changes_at_a_time_have_a_limit(script, brokers):
    client = script.connect()
    for _ in range(CHANGES_MAX):
        client.tell(RequestCode.REMOVE_BROKER, REMOVE)
    client.tell(RequestCode.REMOVE_BROKER, REMOVE)
    assert client.received.pop().code == ResponseCode.SYSTEM_BUSY
    end(script, brokers, ChangeResult())
    client.tell(RequestCode.REMOVE_BROKER, REMOVE)
    assert len(brokers.asked) == CHANGES_MAX


def test_the_runtime_info_and_settings_of_a_container(script):
    client = script.connect()
    table = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}).json["table"]
    assert json.loads(table["containerBrokers"])[0] == {
        "cluster": "c", "name": "broker-a", "broker_id": 0, "address": "127.0.0.1:10911", "state": "serving",
        "config": "/a.toml", "store": "/a",
    }  # fmt: skip
    settings = client.ask(RequestCode.GET_BROKER_CONFIG, {}).body.decode()
    assert "listenPort=10811\n" in settings
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class Named:
    def __init__(self, name: str) -> None:
        identity = type("I", (), {"broker_cluster_name": "c", "broker_name": name, "broker_id": 0})
        self.config = type("C", (), {"identity": identity})
        self.view: Any = SimpleNamespace(neighbours=[])


def test_brokers_of_a_process_know_the_others():
    a, b, c = Named("a"), Named("b"), Named("c")
    own = Container()
    for each in (a, b, c):
        own.join(each)
    assert [each.view.neighbours for each in (a, b, c)] == [[b.view, c.view], [a.view, c.view], [a.view, b.view]]
    own.leave(b)
    assert [each.view.neighbours for each in (a, b, c)] == [[c.view], [], [a.view]]
    assert list(own.brokers) == ["c_a_0", "c_c_0"]
