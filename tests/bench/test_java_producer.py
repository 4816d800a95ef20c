"""Tests the parser of reports of `org.apache.rocketmq.example.benchmark.Producer` 5.5.0."""

from tests.bench.java_producer import Report, parse_report


def test_a_report_is_read() -> None:
    line = (
        "Current Time: 2026-11-21 15:12:34,101 | Send TPS: 21993 | Max RT(ms): 212 | Average RT(ms):   2.910"
        " | Send Failed: 3 | Response Failed: 1\n"
    )
    assert parse_report(line) == Report(tps=21993, rt_mean_ms=2.91, rt_max_ms=212, failed=4)


def test_other_lines_are_no_reports() -> None:
    tail = " | Send Failed: 0 | Response Failed: 0"
    last = f"[Complete] Send Total: 9 | Send TPS: 1 | Max RT(ms): 1 | Average RT(ms):   1.000{tail}"
    idle = f"Current Time: x | Send TPS: 0 | Max RT(ms): 0 | Average RT(ms):     NaN{tail}"
    for line in ("topic: BenchmarkTest, threadCount: 1, messageSize: 1024, keyEnable: false", last, idle, ""):
        assert parse_report(line) is None
