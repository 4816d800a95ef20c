"""The progress of a pipeline as Prometheus scrapes it."""

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import progress
from rmqkit.spark.pipelines.progress import PipelineProgress, ProgressMetrics

OFFSETS = {"t": {"a": {"0": 7, "1": 5}}, "u": {"b": {"0": 1}}}
FIRST = PipelineProgress(rows=10, rows_per_s=2.5, lag=3, batch=0, batch_rows=10, offsets=OFFSETS)


def scraped(metrics):
    """The samples of a scrape: name and the values of the labels, sorted by label → value."""
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, *each.labels.values()): each.value for each in samples}


def test_a_scrape_has_the_last_progress():
    with ProgressMetrics("ingest", "127.0.0.1:0", topics="t,u", wall_s=lambda: 1234.5) as metrics:
        info = {("rmqkit_pipeline_info", "ingest", "t,u"): 1}
        assert scraped(metrics) == info
        metrics.update(FIRST)
        assert scraped(metrics) == info | {
            ("rmqkit_pipeline_rows_total", "ingest"): 10,
            ("rmqkit_pipeline_rows_per_second", "ingest"): 2.5,
            ("rmqkit_pipeline_last_batch_rows", "ingest"): 10,
            ("rmqkit_pipeline_last_batch", "ingest"): 0,
            ("rmqkit_pipeline_last_batch_timestamp_seconds", "ingest"): 1234.5,
            ("rmqkit_pipeline_lag_messages", "ingest"): 3,
            ("rmqkit_pipeline_offset", "a", "ingest", "0", "t"): 7,
            ("rmqkit_pipeline_offset", "a", "ingest", "1", "t"): 5,
            ("rmqkit_pipeline_offset", "b", "ingest", "0", "u"): 1,
            ("rmqkit_pipeline_queues_omitted", "ingest"): 0,
        }
        metrics.update(PipelineProgress(rows=12, batch=1, batch_rows=2))
        now = scraped(metrics)
        assert now["rmqkit_pipeline_rows_total", "ingest"] == 12
        assert not any(name == "rmqkit_pipeline_lag_messages" for name, *_labels in now)
    with pytest.raises(OSError, match="refused"):
        scraped(metrics)


def test_queues_beyond_the_limit_are_counted(monkeypatch):
    monkeypatch.setattr(progress, "QUEUES_MAX", 2)
    with ProgressMetrics("ingest", "127.0.0.1:0") as metrics:
        metrics.update(FIRST)
        now = scraped(metrics)
    assert sum(name == "rmqkit_pipeline_offset" for name, *_labels in now) == 2
    assert now["rmqkit_pipeline_queues_omitted", "ingest"] == 1


@pytest.mark.parametrize("text", ["9100", ":9100", "host:", "host:x", "host:70000"])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ConfigError, match=f"^{text} is not an address to serve metrics at"):
        ProgressMetrics("ingest", text)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"metrics cannot be served at {address}"), ProgressMetrics("i", address):
            pass


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"metrics need prometheus-client: pip install 'rmqkit\[metrics\]'"):
        ProgressMetrics("ingest", "127.0.0.1:0")
