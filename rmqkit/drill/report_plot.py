"""The picture of a drill: messages a second and latency of sends over time, with a band where the fault was. Inline SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rmqkit.drill import history as names
from rmqkit.drill.history import History
from rmqkit.drill.report_words import latencies, rates

BUCKET_MS = 250
WIDTH_IN, HEIGHT_IN = 11.6, 6.4
OK_COLOUR, FAIL_COLOUR, UNKNOWN_COLOUR, DELIVERED_COLOUR = "#1a7f4b", "#c0392b", "#b7791f", "#2b6cb0"
BAND_COLOUR = "#e53e3e"


def plot(history: History) -> str:
    """An `<svg>` element. Raises ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rmqkit", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        sent, delivered, latency = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        _rates(sent, delivered, history)
        _latencies(latency, history)
        _events((sent, delivered, latency), history)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _rates(sent: Any, delivered: Any, history: History) -> None:
    """Apart, since groups that catch up are given many times what is sent."""
    at_s, table = rates(history, BUCKET_MS)
    sent.step(at_s, table["ok"], where="mid", color=OK_COLOUR, label="acknowledged")
    delivered.step(at_s, table["delivered"], where="mid", color=DELIVERED_COLOUR)
    for name, colour, label in (("fail", FAIL_COLOUR, "refused"), ("unknown", UNKNOWN_COLOUR, "unknown (no answer)")):
        if any(table[name]):
            sent.step(at_s, table[name], where="mid", color=colour, label=label)
    for axes, name in ((sent, "sends a second"), (delivered, "delivered a second")):
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)


def _latencies(axes: Any, history: History) -> None:
    at_s, took_ms = latencies(history)
    axes.scatter(at_s, [max(each, 0.5) for each in took_ms], s=5, color=OK_COLOUR, alpha=0.5, linewidths=0, rasterized=True)
    axes.set_yscale("log")
    axes.set_ylabel("ms of a send")
    axes.set_xlabel("seconds since the drill began")
    axes.grid(alpha=0.25)


def _events(panels: Sequence[Any], history: History) -> None:
    begin_ms, end_ms = history.event_ms(names.FAULT_BEGINS), history.event_ms(names.FAULT_ENDS)
    for axes in panels:
        if begin_ms is not None and end_ms is not None:
            axes.axvspan(begin_ms / 1000, end_ms / 1000, color=BAND_COLOUR, alpha=0.12, label="fault")
        for key, style in ((names.SLAVE_READ, ":"), (names.FIRST_SEND_AGAIN, "--"), (names.IN_SYNC_AGAIN, "-.")):
            at_ms = history.event_ms(key)
            if at_ms is not None:
                axes.axvline(at_ms / 1000, color="#555555", linestyle=style, linewidth=1, label=key)
    panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9, frameon=False)
