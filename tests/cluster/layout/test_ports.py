"""Choosing ports."""

import os
import socket

import pytest

from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.layout import ports
from rmqkit.cluster.layout.description import Description

PLANS = Description(groups=2, replicas=1).nodes()


def choose(taken=(), *, any_port=False, reserved=()):
    return ports.choose(
        PLANS,
        lambda plan: plan.port,
        "127.0.0.1",
        any_port=any_port,
        reserved=reserved,
        free=lambda _host, port: port not in taken,
    )


def test_free_ports_are_taken_as_wanted():
    assert choose() == {"ns-0": 9876, "broker-a-0": 10911, "broker-b-0": 10921}


@pytest.mark.parametrize("port", [9876, 10911, 10909, 10912, 10922])
def test_a_taken_port_is_an_error_that_names_it(port):
    with pytest.raises(ClusterError, match=rf"port {port}, which .* needs, is taken.*--any-port"):
        choose({port})


def test_any_port_moves_on_by_ten_past_every_port_of_the_node():
    assert choose({9876, 9886, 10909, 10922}, any_port=True) == {"ns-0": 9896, "broker-a-0": 10931, "broker-b-0": 10941}


def test_ports_of_nodes_that_run_are_not_given_away():
    assert choose(any_port=True, reserved={10912})["broker-a-0"] == 10921


def test_the_end_of_the_ports_is_an_error():
    with pytest.raises(ClusterError, match="no free port is left for ns-0"):
        choose(range(65536), any_port=True)


def test_a_listener_makes_its_port_taken_and_is_named_as_owner():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert f"pid {os.getpid()} (" in ports.owner_of(port)
        assert f"taken by pid {os.getpid()}" in ports.taken_text("ns-0", port)
    assert ports.is_free("127.0.0.1", port)


def test_a_probe_does_not_take_the_port_from_a_node_that_starts(monkeypatch):
    def a_node_starts_meanwhile(probe, *given):
        node = socket.socket()
        node.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        node.bind(probe.getsockname())
        node.listen(1)
        node.close()
        return leave(probe, *given)

    leave = socket.socket.__exit__
    monkeypatch.setattr(socket.socket, "__exit__", a_node_starts_meanwhile)
    assert ports.is_free("127.0.0.1", 0)


def test_an_address_of_another_machine_cannot_be_bound():
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1"):
        ports.is_free("192.0.2.1", 20000)


def test_the_end_of_a_connection_takes_its_port_too():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert f"pid {os.getpid()} (" in ports.owner_of(client.getsockname()[1])
