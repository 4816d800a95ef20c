"""The metrics of pop, as a scrape shows them."""

from tests.broker.handlers.pop_requests import INVISIBLE_MS, ack, fill, popped
from tests.broker.requests import with_topic
from tests.metrics.test_broker_metrics import samples, scrape, value


def test_metrics_of_pop(make):
    script = make("metricsExporterType=PROM", "metricsPromExporterPort=0", "reviveQueueNum=1")
    client = with_topic(script)
    fill(client, 3)
    first, *_ = popped(script, client)
    assert ack(client, first).code == 0
    found = samples(scrape(script))
    of = {"consumer_group": "CG", "topic": "T"}
    assert value(found, "rocketmq_pop_checkpoint_buffer_size") == 1
    assert value(found, "rocketmq_pop_offset_buffer_size") == 1
    assert value(found, "rocketmq_consumer_inflight_messages", **of) >= 2
    name = "rocketmq_pop_revive_in_message_total"
    assert value(found, name, **of, revive_message_type="CK", put_status="PUT_OK") == 1
    assert value(found, name, **of, revive_message_type="ACK", put_status="PUT_OK") == 1
    script.advance(1_000)
    found = samples(scrape(script))
    assert value(found, "rocketmq_pop_revive_out_message_total", **of, revive_message_type="CK", queue_id="0") == 1
    assert value(found, "rocketmq_pop_revive_lag_milliseconds", queue_id="0") == 0
    script.advance(INVISIBLE_MS + 1_001)
    found = samples(scrape(script))
    assert value(found, "rocketmq_pop_revive_retry_messages_total", **of, put_status="PUT_OK") == 2
    assert value(found, "rocketmq_pop_checkpoint_buffer_size") == 0


def test_metrics_of_pop_may_be_off(make):
    script = make("metricsExporterType=PROM", "metricsPromExporterPort=0", "enablePopMetrics=false")
    assert "rocketmq_pop_" not in scrape(script)
