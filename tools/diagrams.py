"""Draws the diagrams of `docs/pictures/` as SVG: boxes with arrows (`Flow`), messages (`Exchange`).

`tools/pages/pictures.py` describes the diagrams; `make docs` writes them. A forge shows them as
pictures, light or dark as the system is. The site puts them into the page (`tools/site.py`), where
their text can be selected and their colours are those of the theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

#: px: line height, mean width of a character, margins, half the width of an actor's box
LINE, CHARACTER, MARGIN, SIDE, ACTOR = 18, 6.6, 16, 18, 66
STYLE = """\
svg.diagram { --own-ink: #1f2328; --own-paper: #fff; --own-box: #f3f4f6; --line: #8a8f98; --accent: #d4502a;
  --ink: var(--md-default-fg-color, var(--own-ink)); --paper: var(--md-default-bg-color, var(--own-paper));
  --box: var(--md-code-bg-color, var(--own-box)); font: 12.5px system-ui, "Segoe UI", Roboto, sans-serif; }
@media (prefers-color-scheme: dark) { svg.diagram { --own-ink: #e6e6e6; --own-paper: #16181d; --own-box: #24272e; } }
svg.diagram .paper { fill: var(--paper); }
svg.diagram text { fill: var(--ink); text-anchor: middle; stroke: none; }
svg.diagram .head { font-weight: 600; }
svg.diagram .title { text-anchor: start; }
svg.diagram .label { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round; }
svg.diagram .box { fill: var(--box); stroke: var(--line); }
svg.diagram .strong { stroke: var(--accent); stroke-width: 2; }
svg.diagram .area { fill: none; stroke: var(--line); stroke-dasharray: 5 4; }
svg.diagram .arrow { fill: none; stroke: var(--line); stroke-width: 1.5; }
svg.diagram .life { stroke: var(--line); stroke-dasharray: 2 4; }
svg.diagram .dashed { stroke-dasharray: 6 4; }
svg.diagram marker path { fill: var(--line); stroke: none; }"""


@dataclass(frozen=True)
class Box:
    """A box at a column and row, which may be fractions. The first line of its text is bold."""

    column: float
    row: float
    text: str
    is_strong: bool = False


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, with a label.

    It is straight. With a `bend` it joins boxes of one row by a bow, that many px below them, or
    above them if the bend is negative.
    """

    begin: str
    end: str
    label: str = ""
    bend: float = 0
    is_dashed: bool = False


@dataclass(frozen=True)
class Area:
    """A frame around boxes, with a title in its upper left corner and room for bows."""

    title: str
    boxes: Sequence[str]
    above: int = 34
    below: int = 18


@dataclass(frozen=True)
class Flow:
    """Boxes on a grid. `cell` is the width and height of a cell, `size` that of a box, in px."""

    title: str
    boxes: Mapping[str, Box]
    arrows: Sequence[Arrow]
    cell: tuple[int, int] = (200, 100)
    size: tuple[int, int] = (160, 62)
    areas: Sequence[Area] = ()

    def svg(self, name: str) -> str:
        left = MARGIN + (SIDE if self.areas else 0) + self.size[0] / 2
        top = MARGIN - min(
            [0, *(each.bend - LINE for each in self.arrows if each.bend < 0 and not self.boxes[each.begin].row)]
        )
        centres = {
            key: (left + box.column * self.cell[0], top + self.size[1] / 2 + box.row * self.cell[1])
            for key, box in self.boxes.items()
        }
        parts = [self._area(area, centres) for area in self.areas]
        parts += [self._arrow(arrow, centres, name) for arrow in self.arrows]
        parts += [self._box(box, centres[key]) for key, box in self.boxes.items()]
        # The labels are above all lines.
        parts += [self._label(arrow, centres) for arrow in self.arrows if arrow.label]
        right = max(x for x, _ in centres.values()) + left
        bottom = max(y for _, y in centres.values()) + self.size[1] / 2 + max([0, *(area.below for area in self.areas)])
        return document(name, self.title, right, bottom + MARGIN, parts)

    def _box(self, box: Box, centre: tuple[float, float]) -> str:
        (x, y), (width, height) = centre, self.size
        kind = "box strong" if box.is_strong else "box"
        frame = (
            f'<rect class="{kind}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}" rx="6"/>'
        )
        return frame + lines(box.text, x, y, has_head=True)

    def _area(self, area: Area, centres: Mapping[str, tuple[float, float]]) -> str:
        xs, ys = zip(*(centres[key] for key in area.boxes), strict=True)
        x, y = min(xs) - self.size[0] / 2 - SIDE, min(ys) - self.size[1] / 2 - area.above
        width, height = max(xs) - min(xs) + self.size[0] + 2 * SIDE, max(ys) + self.size[1] / 2 + area.below - y
        frame = f'<rect class="area" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10"/>'
        return frame + f'<text class="head title" x="{x + 12:g}" y="{y + 22:g}">{escape(area.title)}</text>'

    def _ends(self, arrow: Arrow, centres: Mapping[str, tuple[float, float]]) -> tuple[float, float, float, float]:
        """The points on the edges of the two boxes."""
        (x1, y1), (x2, y2) = centres[arrow.begin], centres[arrow.end]
        width, height = self.size
        if arrow.bend:
            edge = math.copysign(height / 2, arrow.bend)
            return x1, y1 + edge, x2, y2 + edge
        if abs(y2 - y1) >= height:
            side = 1 if y2 > y1 else -1
            return x1, y1 + side * height / 2, x2, y2 - side * height / 2
        side = 1 if x2 > x1 else -1
        return x1 + side * width / 2, y1, x2 - side * width / 2, y2

    def _middle(self, arrow: Arrow, centres: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
        x1, y1, x2, y2 = self._ends(arrow, centres)
        return (x1 + x2) / 2, (y1 + y2) / 2 + arrow.bend

    def _arrow(self, arrow: Arrow, centres: Mapping[str, tuple[float, float]], name: str) -> str:
        x1, y1, x2, y2 = self._ends(arrow, centres)
        (x, y), kind = self._middle(arrow, centres), "arrow dashed" if arrow.is_dashed else "arrow"
        # A quadratic curve through the middle; a straight line where there is no bend.
        bow = f"Q{2 * x - (x1 + x2) / 2:g} {2 * y - (y1 + y2) / 2:g} {x2:g} {y2:g}" if arrow.bend else f"L{x2:g} {y2:g}"
        return f'<path class="{kind}" d="M{x1:g} {y1:g}{bow}" marker-end="url(#{name}-tip)"/>'

    def _label(self, arrow: Arrow, centres: Mapping[str, tuple[float, float]]) -> str:
        x, y = self._middle(arrow, centres)
        return lines(arrow.label, x, y + (math.copysign(10, arrow.bend) if arrow.bend else 0), kind="label")


@dataclass(frozen=True)
class Step:
    """A message from one actor to another; with one actor alone, a note about what it does.

    `is_reply`: dashed.
    """

    begin: str
    end: str
    text: str
    is_reply: bool = False


@dataclass(frozen=True)
class Exchange:
    """Messages between actors, from top to bottom."""

    title: str
    actors: Sequence[str]
    steps: Sequence[Step]
    gap: int = 210

    def svg(self, name: str) -> str:
        places = {actor: MARGIN + ACTOR + at * self.gap for at, actor in enumerate(self.actors)}
        y, parts = MARGIN + 64.0, []
        for step in self.steps:
            rows = step.text.count("\n") + 1
            if step.begin == step.end:
                x, width = places[step.begin], max(map(text_width, step.text.split("\n"))) + 20
                height = rows * LINE + 8
                left = min(max(x - width / 2, 6), places[self.actors[-1]] + ACTOR + MARGIN - width - 6)
                frame = f'<rect class="box" x="{left:g}" y="{y - 12:g}" width="{width:g}" height="{height}" rx="4"/>'
                parts.append(frame + lines(step.text, left + width / 2, y - 12 + height / 2))
                y += height + 12
                continue
            x1, x2, kind = places[step.begin], places[step.end], "arrow dashed" if step.is_reply else "arrow"
            y += rows * LINE - 10
            parts.append(f'<path class="{kind}" d="M{x1} {y:g}L{x2} {y:g}" marker-end="url(#{name}-tip)"/>')
            parts.append(lines(step.text, (x1 + x2) / 2, y - rows * LINE / 2 - 3, kind="label"))
            y += 26
        heads = [f'<path class="life" d="M{x} {MARGIN + 34}V{y:g}"/>' for x in places.values()]
        for actor, x in places.items():
            heads.append(f'<rect class="box strong" x="{x - ACTOR}" y="{MARGIN}" width="{2 * ACTOR}" height="34" rx="6"/>')
            heads.append(lines(actor, x, MARGIN + 17, has_head=True))
        return document(name, self.title, max(places.values()) + ACTOR + MARGIN, y + MARGIN, [*heads, *parts])


def lines(text: str, x: float, y: float, *, has_head: bool = False, kind: str = "") -> str:
    """Lines of text around a point."""
    rows = text.split("\n")
    top = y - (len(rows) - 1) * LINE / 2 + 4.5
    written = []
    for at, row in enumerate(rows):
        classes = " ".join(filter(None, [kind, "head" if has_head and not at else ""]))
        attribute = f' class="{classes}"' if classes else ""
        written.append(f'<text{attribute} x="{x:g}" y="{top + at * LINE:g}">{escape(row, quote=False)}</text>')
    return "".join(written)


def text_width(text: str) -> float:
    return max(len(row) for row in text.split("\n")) * CHARACTER


def document(name: str, title: str, width: float, height: float, parts: Iterable[str]) -> str:
    tip = f'<marker id="{name}-tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    return "\n".join(
        [
            f'<svg class="diagram" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}"'
            f' viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
            f"<style>\n{STYLE}\n</style>",
            f'<defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="paper" width="{width:g}" height="{height:g}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )
