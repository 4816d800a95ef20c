"""Metrics of a controller: its role, its log, and the broker sets of its table."""

import pytest

from tests.controller.conftest import Make
from tests.controller.conftest import make as make
from tests.metrics.test_broker_metrics import samples, scrape, value

SET = {"cluster": "DefaultCluster", "broker_set": "broker-a"}


def test_the_metrics_of_a_controller_have_its_role_and_its_sets(make: Make):
    script = make(metricsExporterType="PROM")
    script.pair()
    found = samples(scrape(script))
    assert value(found, "role", node_type="controller", node_id="c", group="controllers", peer_id="n0") == 3
    assert value(found, "active_broker_num", **SET) == 2
    assert value(found, "rmqkit_controller_log_entries") >= 4
    assert value(found, "rmqkit_controller_log_bytes") > 0
    assert value(found, "rmqkit_broker_set_members", **SET) == 2
    assert value(found, "rmqkit_broker_set_in_sync", **SET) == 2
    assert value(found, "rmqkit_broker_set_has_master", **SET) == 1
    assert value(found, "rmqkit_broker_set_master_epoch", **SET) == 1
    assert value(found, "rmqkit_requests_total", request_code="controller_elect_master") == 1


def test_a_dead_master_is_seen(make: Make):
    script = make(metricsExporterType="PROM")
    one, _ = script.pair()
    one.client.close()
    script.finish_disk()
    found = samples(scrape(script))
    assert value(found, "active_broker_num", **SET) == 1
    assert value(found, "rmqkit_masters_replaced_total") == 1
    assert value(found, "rmqkit_broker_set_master_epoch", **SET) == 2


@pytest.mark.parametrize("settings", [{}, {"metricsExporterType": "DISABLE"}])
def test_off_by_default(make: Make, settings: dict[str, str]):
    assert make(**settings).node.metrics is None
