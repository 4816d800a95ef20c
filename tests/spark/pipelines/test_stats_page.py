"""The HTML page of statistics: its tables and plot, and what it says without messages."""

import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from rmqkit.spark.pipelines.stats import HotKey, Hour, Spread, Stats, page


def hour(topic, number, *, messages=7, before_born=0):
    spread = Spread(p50=1, p95=2, p99=3000, max=40_000.4)
    return Hour(
        topic=topic, hour=f"2026-01-01-{number:02}", messages=messages, bytes=2048 * messages, per_s=messages / 3600,
        peak_per_s=5, size=spread, latency_ms=spread, before_born=before_born,
    )  # fmt: skip


class Rows(HTMLParser):
    """The text of each table's cells, by table and row."""

    def __init__(self, text):
        super().__init__()
        self.tables = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._is_cell = True
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._is_cell:
            self.tables[-1][-1][-1] += data


def test_the_page_has_topics_plot_hours_and_keys():
    key = HotKey(topic="t", hour="2026-01-01-00", key="<k&1>", messages=3, share=0.4286)
    found = Stats(hours=[hour("t", 0), hour("t", 1, messages=1000, before_born=2), hour("u", 5)], keys=[key])
    text = page(found, "t, u")
    topics, hours, keys = (rows[1:] for rows in Rows(text).tables)
    assert topics == [
        ["t", "2026-01-01-00 to 2026-01-01-01", "1,007", "2,062,336", "5", "40,000"],
        ["u", "2026-01-01-05", "7", "14,336", "5", "40,000"],
    ]
    spread = ["1", "2", "3,000", "40,000"]
    assert hours[1] == ["t", "2026-01-01-01", "1,000", "2,048,000", "0.3", "5", *spread, *spread]
    assert len(hours) == 3
    assert keys == [["t", "2026-01-01-00", "<k&1>", "3", "42.9%"]]
    assert "<k&1>" not in text
    assert re.search(r"<h1>1,014 messages of t, u</h1>", text)
    assert "2 messages seem to be stored before they were born" in text
    assert text.count("<svg") == 1
    assert not re.search(r"""(src|href)=["']https?:""", text)
    assert text == page(found, "t, u"), "two pages of the same figures are equal"


def test_topics_beyond_the_plot_are_counted():
    text = page(Stats(hours=[hour(f"topic-{number}", 0) for number in range(10)], keys=[]), "lake")
    assert "The plot has the 8 topics with the most messages, and omits 2." in text
    assert len(Rows(text).tables) == 2


def test_without_messages_it_says_so():
    text = page(Stats(hours=[], keys=[]), "t")
    assert "There are no messages." in text
    assert not Rows(text).tables
