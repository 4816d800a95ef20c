"""How often the poller polls without waiting before it sleeps."""

import os
import select
import threading

import pytest

from rmqkit.shell.poller import (
    CREDIT_MAX,
    FRAMES_WINDOW,
    READ,
    SPIN_FRAMES_MAX,
    SPIN_TURN_NS_MAX,
    TRY_AGAIN,
    EpollPoller,
    SelectorPoller,
)
from rmqkit.shell.wakeup import Wakeup

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's")


class Looked:
    """An epoll that records the timeout of each poll, and has an event at some of them."""

    def __init__(self, *with_event: int) -> None:
        self.timeouts: list[float] = []
        self._with_event = with_event

    def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
        self.timeouts.append(timeout_s)
        return [(7, READ)] if len(self.timeouts) in self._with_event else []


def poller(monkeypatch: pytest.MonkeyPatch, epoll: Looked, processors: int = 2) -> EpollPoller:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    wakeup = Wakeup()
    wakeup.close()
    made = EpollPoller(wakeup, 3)
    made.close()
    made._epoll = epoll  # type: ignore[assignment]
    return made


def test_an_idle_node_sleeps_at_once(monkeypatch):
    epoll = Looked()
    polled = poller(monkeypatch, epoll)
    assert [polled.poll(None), polled.poll(250)] == [[], []]
    assert epoll.timeouts == [-1, 0.25]


def test_after_events_it_polls_without_waiting_before_it_sleeps(monkeypatch):
    epoll = Looked(1, 3)
    polled = poller(monkeypatch, epoll)
    assert polled.poll(1000)
    assert polled.poll(1000), "at the second look"
    assert not polled.poll(1000)
    assert not polled.poll(1000), "there was nothing: no looks before the next sleep"
    assert epoll.timeouts == [1.0, 0, 0, 0, 0, 0, 1.0, 1.0]


def test_a_turn_that_may_not_wait_polls_once(monkeypatch):
    epoll = Looked(1)
    polled = poller(monkeypatch, epoll)
    assert polled.poll(0)
    assert not polled.poll(0)
    assert epoll.timeouts == [0.0, 0.0]


def test_the_only_processor_is_left_to_the_peers(monkeypatch):
    epoll = Looked(1)
    polled = poller(monkeypatch, epoll, processors=1)
    assert polled.poll(1000)
    assert not polled.poll(1000)
    assert epoll.timeouts == [1.0, 1.0]


class Always:
    """An epoll that always has an event for a sleeping poll, and for a spinning one if `helps`."""

    def __init__(self) -> None:
        self.looks = 0
        self.helps = False

    def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
        self.looks += timeout_s == 0
        return [(7, READ)] if timeout_s or self.helps else []


def test_polls_without_waiting_that_find_nothing_are_left_out_except_for_a_rare_try(monkeypatch):
    epoll = Always()
    polled = poller(monkeypatch, epoll)  # type: ignore[arg-type]
    for _ in range(CREDIT_MAX + 1):
        polled.poll(1000)
    epoll.looks = 0
    for _ in range(3 * TRY_AGAIN):
        polled.poll(1000)
    assert epoll.looks == 3 * 3, "three looks, three times"


def test_polls_without_waiting_resume_once_they_find_events(monkeypatch):
    epoll = Always()
    polled = poller(monkeypatch, epoll)  # type: ignore[arg-type]
    for _ in range(CREDIT_MAX + 1):
        polled.poll(1000)
    epoll.helps = True
    for _ in range(TRY_AGAIN + 1):
        polled.poll(1000)
    epoll.looks = 0
    for _ in range(10):
        polled.poll(1000)
    assert epoll.looks == 10, "each is answered by the first look"


def test_after_a_long_turn_it_sleeps_at_once(monkeypatch):
    epoll = Looked(1)
    polled = poller(monkeypatch, epoll)
    assert polled.poll(1000)
    assert not polled.poll(1000, SPIN_TURN_NS_MAX + 1)
    assert epoll.timeouts == [1.0, 1.0]


def test_a_node_with_several_frames_per_turn_sleeps_at_once_and_one_sender_brings_the_spins_back(monkeypatch):
    epoll = Always()
    epoll.helps = True
    polled = poller(monkeypatch, epoll)  # type: ignore[arg-type]
    for _ in range(4 * FRAMES_WINDOW):
        polled.poll(1000, 0, SPIN_FRAMES_MAX + 1)
    epoll.looks = 0
    for _ in range(10):
        polled.poll(1000, 0, 0)
        polled.poll(1000, 0, SPIN_FRAMES_MAX + 1)
    assert epoll.looks == 0, "a turn without frames, such as one for a finished sync, does not count"
    for _ in range(4 * FRAMES_WINDOW):
        polled.poll(1000, 0, 1)
    epoll.looks = 0
    for _ in range(10):
        polled.poll(1000, 0, 1)
    assert epoll.looks == 10


class WokenAt:
    """An epoll without events; another thread wakes the loop during the poll of this number."""

    def __init__(self, wakeup: Wakeup, number: int) -> None:
        self.timeouts: list[float] = []
        self._wakeup, self._number = wakeup, number

    def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
        self.timeouts.append(timeout_s)
        if len(self.timeouts) == self._number:
            self._wakeup.set()
        return [(7, READ)] if len(self.timeouts) == 1 else []


def test_a_wake_up_ends_the_spin_without_a_byte(monkeypatch):
    polled = poller(monkeypatch, Looked())
    polled._epoll = epoll = WokenAt(polled._wakeup, 3)  # type: ignore[assignment]
    assert polled.poll(1000)
    assert not polled.poll(1000)
    assert epoll.timeouts == [1.0, 0, 0], "the third of the three spins is left out"


def test_a_woken_poller_does_not_wait(monkeypatch):
    epoll = Looked()
    polled = poller(monkeypatch, epoll)
    polled._wakeup.set()
    assert not polled.poll(None)
    assert epoll.timeouts == [0]


@pytest.mark.parametrize("make", [EpollPoller, SelectorPoller])
def test_a_byte_ends_the_sleep_of_both_pollers(make):
    wakeup = Wakeup()
    polled = make(wakeup)
    polled.add(wakeup.fd, READ)
    try:
        for _ in range(20):
            wakeup.is_set = False
            waker = threading.Thread(target=wakeup.set)
            waker.start()
            while not wakeup.is_set:
                polled.poll(10_000)
            waker.join()
            wakeup.ready(READ)
        wakeup.is_set = False
        assert polled.poll(0) == [], "each byte was read"
        wakeup.set()
        assert polled.poll(10_000) == [], "the flag alone prevents the wait"
    finally:
        polled.close()
        wakeup.close()
