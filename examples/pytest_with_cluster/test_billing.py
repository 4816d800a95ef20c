"""Tests `billing.py` on a real cluster. The tests share it, each with its own topics and groups."""

import pytest
from billing import Billing

from rmqkit import Message


@pytest.fixture
def shop(rmqkit_clean):
    """The program on topics of this test only; it is closed before the topics are removed."""
    shop = Billing(
        namesrv=rmqkit_clean.namesrv,
        group=rmqkit_clean.group("billing"),
        orders=rmqkit_clean.topic("orders"),
        invoices=rmqkit_clean.topic("invoices"),
    )
    return rmqkit_clean.closes(shop)


def order(clean, name, tag):
    clean.producer().send(Message(clean.name("orders"), name, tags=tag, keys=name.decode()))


def invoices(clean, count):
    """Return the bodies of the next `count` invoices, sorted."""
    reader = clean.pull_consumer(clean.group("auditor"), consume_from="first")
    reader.subscribe(clean.name("invoices"))
    found = []
    while len(found) < count:
        messages = reader.poll(timeout_ms=10_000)
        assert messages, f"only {found} came"
        found += [message.body for message in messages]
    return sorted(found)


def test_paid_orders_are_billed_and_no_others(shop, rmqkit_clean):
    shop.start()
    order(rmqkit_clean, b"one", "paid")
    order(rmqkit_clean, b"two", "open")
    order(rmqkit_clean, b"three", "paid")
    assert invoices(rmqkit_clean, 2) == [b"invoice for one", b"invoice for three"]


def test_orders_from_before_a_restart_are_billed(shop, rmqkit_clean):
    order(rmqkit_clean, b"early", "paid")
    rmqkit_clean.cluster.restart("master")
    shop.start()
    assert invoices(rmqkit_clean, 1) == [b"invoice for early"]
