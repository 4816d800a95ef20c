"""The built-in faults keep their contract, and the contract detects faults that do not."""

import socket
import threading
from pathlib import Path

import pytest

from rmqkit.drill import faults
from rmqkit.drill.contract import DrillError
from rmqkit.drill.real import transport
from rmqkit.testing.faults import NODE, FaultContract, FaultLab


class TestKill(FaultContract):
    make = faults.Kill


class TestPause(FaultContract):
    make = faults.Pause


class TestIsolate(FaultContract):
    make = faults.isolate


class TestIsolateIn(FaultContract):
    make = faults.isolate_in


class TestIsolateOut(FaultContract):
    make = faults.isolate_out


class TestIsolateHa(FaultContract):
    make = faults.isolate_ha


def test_the_table_has_them_by_their_names():
    assert [make().name for make in faults.FAULTS.values()] == list(faults.FAULTS)


class _Forgetful(faults.Pause):
    def end(self, driver, node):
        """Leave the fault in place."""


class _Boastful(faults.Kill):
    def proof(self, driver, node):
        return "it is dead"


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (_Forgetful, "test_it_is_taken_back_and_shows_no_more"),
        (_Boastful, "test_it_shows_nothing_before_it_begins"),
    ],
)
def test_the_contract_finds_a_broken_fault(fault: type, test: str):
    suite = FaultContract()
    suite.driver, suite.fault = FaultLab(), fault()
    with pytest.raises(AssertionError):
        getattr(suite, test)()


def test_a_cut_that_holds_nothing_back_is_no_proof():
    lab, fault = FaultLab(), faults.isolate_ha()
    fault.begin(lab, NODE)
    assert "bytes held back 100" in fault.proof(lab, NODE)
    lab.seen = lambda node: {"alive": True, "paused": False, "answers": True, "transport": {"bytes_held": 0}}
    assert fault.proof(lab, NODE) == ""


# --- the drill's side of the socket


def _answering(folder: Path, answer: bytes) -> threading.Thread:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "drill.sock"))
    listening.listen(1)

    def serve() -> None:
        with listening, listening.accept()[0] as sock:
            sock.recv(65_536)
            sock.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_counts_of_several_isolations_are_added(tmp_path: Path):
    thread = _answering(tmp_path, b'{"ok":true,"isolations":[{"counts":{"a":1}},{"counts":{"a":2,"b":3}}]}\n')
    assert transport.heal(tmp_path) == {"a": 3, "b": 3}
    thread.join(20)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b'{"ok":false,"error":"no such thing"}\n', "no such thing"), (b"", "no answer"), (b"rubbish\n", "no answer")],
)
def test_an_answer_that_is_none_is_said(tmp_path: Path, answer: bytes, why: str):
    thread = _answering(tmp_path, answer)
    with pytest.raises(DrillError, match=why):
        transport.isolate(tmp_path, [{}])
    thread.join(20)


def test_a_node_without_a_socket_is_said(tmp_path: Path):
    with pytest.raises(DrillError, match="drillFaultsEnable"):
        transport.counted(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "drill.sock"))
    with pytest.raises(DrillError, match="refused"):
        transport.counted(tmp_path)
