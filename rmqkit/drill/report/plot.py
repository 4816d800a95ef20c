"""The plots of a report, as inline SVG.

One plot shows rates, send latencies and roles over time, with a band for the fault. The other shows
the stages of a takeover and of the return as bars, from the start and from the end of the fault.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rmqkit.drill import history as names
from rmqkit.drill.history import History
from rmqkit.drill.promises.heads import RoleInterval, spans
from rmqkit.drill.report.verdict_words import latencies, plain, rates
from rmqkit.drill.stages import RETURN, STAGES, TAKEOVER, Stage, stages
from rmqkit.html_page import svg

BUCKET_MS = 250
WIDTH_IN, HEIGHT_IN = 11.6, 6.4
OK_COLOUR, FAIL_COLOUR, UNKNOWN_COLOUR, DELIVERED_COLOUR = "#1a7f4b", "#c0392b", "#b7791f", "#2b6cb0"
BAND_COLOUR = "#e53e3e"
#: role and state of a node → colour
ROLE_COLOURS = {
    "master/online": "#1a7f4b",
    "acting/online": "#dd6b20",
    "slave/online": "#a0aec0",
    "isolated": "#805ad5",
    "pre-online": "#d6bcfa",
}
ROLE_IN = 0.32
STAGE_COLOURS = {TAKEOVER: "#dd6b20", RETURN: "#1a7f4b"}
STAGE_IN = 0.27
#: shortest time axis, in seconds
SOONEST_S = 0.1
#: polls of a node are at most this far apart while the node answers
LOOK_MS = 600


def plot(history: History) -> str:
    """Return an `<svg>` element with rates, latencies and roles.

    Raises ImportError without matplotlib.
    """
    nodes = role_bands(history)
    heights = [3.0, 2.0, 2.0]
    height_in = HEIGHT_IN
    if nodes:
        roles_in = 0.5 + ROLE_IN * len(nodes)
        heights.append(roles_in * sum(heights) / HEIGHT_IN)
        height_in += roles_in

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _rates(panels[0], panels[1], history)
        _latencies(panels[2], history)
        if nodes:
            _roles(panels[3], nodes)
        panels[-1].set_xlabel("seconds since the drill began")
        _events(panels, history)

    return svg(WIDTH_IN, height_in, draw)


def stage_plot(history: History) -> str:
    """Return an `<svg>` element with the stages; "" if no slave acted.

    Raises ImportError without matplotlib.
    """
    found = stages(history)
    if not any(stage.name == STAGES[TAKEOVER][names.ACTS] for stage in found):
        return ""
    parts = {part: [stage for stage in found if stage.part == part] for part in STAGES}
    parts = {part: rows for part, rows in parts.items() if rows}

    def draw(figure: Any) -> None:
        heights = [len(rows) + 1 for rows in parts.values()]
        panels = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
        for axes, (part, rows) in zip(panels, parts.items(), strict=True):
            _stages(axes, part, rows)

    return svg(WIDTH_IN, 0.9 * len(parts) + STAGE_IN * sum(map(len, parts.values())), draw)


def role_bands(history: History) -> dict[str, list[RoleInterval]]:
    """Return the role intervals of each node of the broken group; {} if there are none."""
    broken = next((row.broker for row in history.events if row.key == names.FAULT_BEGINS), "")
    found: dict[str, list[RoleInterval]] = {}
    for span in spans(history):
        if span.broker == broken:
            found.setdefault(span.node, []).append(span)
    return dict(sorted(found.items()))


def _roles(axes: Any, nodes: Mapping[str, Sequence[RoleInterval]]) -> None:
    """Draw one line for each node. It has gaps where the role is unknown."""
    shown: dict[str, str] = {}
    # There is time between two polls: extend a state until the poll that shows the next one.
    for at, (_node, found) in enumerate(nodes.items()):
        for span, following in zip_longest(found, found[1:]):
            state = f"{span.role}/{span.online}" if span.online == "online" else span.online
            colour = ROLE_COLOURS.get(state, "#4a5568")
            shown[state.partition("/")[0]] = colour
            end_ms = max(span.end_ms, span.begin_ms + 1)
            if following is not None and following.begin_ms - end_ms < LOOK_MS:
                end_ms = following.begin_ms
            axes.barh(at, (end_ms - span.begin_ms) / 1000, 0.7, left=span.begin_ms / 1000, color=colour, linewidth=0)
    axes.set_yticks(range(len(nodes)), list(nodes))
    axes.set_ylim(len(nodes) - 0.4, -0.6)
    axes.grid(alpha=0.25, axis="x")
    handles = [axes.barh(-9, 0, color=colour, label=name) for name, colour in shown.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=6, fontsize=9, frameon=False)


def _stages(axes: Any, part: str, rows: Sequence[Stage]) -> None:
    took_s = [stage.after_ms / 1000 for stage in rows]
    axes.barh(range(len(rows)), took_s, 0.65, left=0, color=STAGE_COLOURS[part], alpha=0.85, linewidth=0)
    axes.set_yticks(range(len(rows)), [stage.name for stage in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, max(max(took_s), SOONEST_S) * 1.12)
    for at, value in enumerate(took_s):
        axes.text(value, at, f"  {value:.3f} s", va="center", fontsize=9)
    axes.set_title(f"{part}: seconds since the fault {'ended' if part == RETURN else 'began'}", loc="left", fontsize=10)
    axes.grid(alpha=0.25, axis="x")


def _rates(sent: Any, delivered: Any, history: History) -> None:
    """Draw sends and deliveries in two panels.

    Groups that catch up receive many times the rate of the sends, so one scale would not fit both.
    """
    at_s, table = rates(history, BUCKET_MS)
    sent.step(at_s, table["ok"], where="mid", color=OK_COLOUR, label="acknowledged")
    delivered.step(at_s, table["delivered"], where="mid", color=DELIVERED_COLOUR)
    for name, colour, label in (("fail", FAIL_COLOUR, "refused"), ("unknown", UNKNOWN_COLOUR, "unknown (no answer)")):
        if any(table[name]):
            sent.step(at_s, table[name], where="mid", color=colour, label=label)
    for axes, name in ((sent, "sends per second"), (delivered, "deliveries per second")):
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)


def _latencies(axes: Any, history: History) -> None:
    at_s, took_ms = latencies(history)
    axes.scatter(at_s, [max(each, 0.5) for each in took_ms], s=5, color=OK_COLOUR, alpha=0.5, linewidths=0, rasterized=True)
    axes.set_yscale("log")
    axes.set_ylabel("send latency, ms")
    axes.grid(alpha=0.25)


def _events(panels: Sequence[Any], history: History) -> None:
    begin_ms, end_ms = history.event_ms(names.FAULT_BEGINS), history.event_ms(names.FAULT_ENDS)
    for axes in panels:
        if begin_ms is not None and end_ms is not None:
            axes.axvspan(begin_ms / 1000, end_ms / 1000, color=BAND_COLOUR, alpha=0.12, label="fault")
        for key, style in (
            (names.ACTS, (0, (1, 3))),
            (names.SLAVE_READ, ":"),
            (names.FIRST_SEND_AGAIN, "--"),
            (names.IN_SYNC_AGAIN, "-."),
        ):
            at_ms = history.event_ms(key)
            if at_ms is not None:
                axes.axvline(at_ms / 1000, color="#555555", linestyle=style, linewidth=1, label=plain(key))
    panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9, frameon=False)
