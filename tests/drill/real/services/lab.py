"""Fakes of the clients that the services' loads use, and a load that runs on them for a moment."""

import time
from itertools import count

from rmqkit.client.message import SendResult, SendStatus
from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.wire.fastjson import MessageQueue

TOPIC, BROKER = "drill-x", "broker-a"
JOIN_S = 5.0


def rows_of(*services, **changes):
    """Return the rows of a plan with these services, on a clock that begins now."""
    begin_s = time.monotonic()
    plan = Plan(services=services, timer_rate=200, transaction_rate=200, **changes)
    history = History()
    rows = ServiceRows(plan, history, lambda: round((time.monotonic() - begin_s) * 1000), name=TOPIC, broker=BROKER)
    history.on_row = rows.seen
    return rows


def run_until(load, holds):
    """Run a load until `holds()`, then stop it as a drill does."""
    load.start()
    until_s = time.monotonic() + JOIN_S
    while not (held := holds()) and time.monotonic() < until_s:
        time.sleep(0.005)
    load.stop_sending(JOIN_S)
    load.close(JOIN_S)
    assert held


def nothing(kind, topic, going, given):
    """Stands for `ReadTopic`: a topic without messages."""


class FakeProducer:
    """Acknowledges everything. `made` has all producers of a test."""

    made = ()  # a test sets a list
    numbers = count()

    def __init__(self, *args, **settings):
        self.sent, self.recalled, self.ended, self.closed = [], [], [], False
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.closed = True

    def send(self, message, queue=None):
        self.sent.append((message, queue))
        return acknowledged(queue)

    def recall(self, handle):
        self.recalled.append(handle)


def acknowledged(queue, number=None):
    number = next(FakeProducer.numbers) if number is None else number
    return SendResult(
        status=SendStatus.SEND_OK,
        msg_id=f"id-{number}",
        offset_msg_id="",
        queue=queue or MessageQueue(TOPIC, BROKER, 0),
        queue_offset=number,
        recall_handle=f"handle-{number}",
    )
