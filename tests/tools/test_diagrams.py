"""The diagrams of docs/pictures: well-formed, wide enough for their texts, and used by a page."""

import re
from xml.etree import ElementTree

import pytest

from tools import docs, site
from tools.diagrams import Arrow, Box, Exchange, Flow, Step
from tools.pages.pictures import PICTURES

SVG = "{http://www.w3.org/2000/svg}"
#: px of a page's text on a screen 1280 wide
WIDTH_MAX = 700


@pytest.mark.parametrize("name", PICTURES)
def test_a_diagram_fits_and_a_page_shows_it(name):
    svg = ElementTree.fromstring(PICTURES[name].svg(name))
    assert float(svg.get("width")) <= WIDTH_MAX
    assert svg.get("aria-label") == PICTURES[name].title
    for text in svg.iter(f"{SVG}text"):
        assert 0 < float(text.get("x")) < float(svg.get("width")), text.text
        assert 0 < float(text.get("y")) < float(svg.get("height")), text.text
    shown = rf"!\[[^\]]+\]\(pictures/{name}\.svg\)"
    assert any(re.search(shown, page.read_text()) for page in docs.DOCS.glob("*.md"))


def test_boxes_are_joined_at_their_edges():
    boxes = {"a": Box(0, 0, "one <1>\nfirst"), "b": Box(1, 0, "two"), "c": Box(0, 1, "three")}
    drawn = Flow("a & b", boxes, [Arrow("a", "b", "to"), Arrow("a", "c"), Arrow("b", "a", bend=30, is_dashed=True)]).svg(
        "it"
    )
    svg = ElementTree.fromstring(drawn)
    assert [each.text for each in svg.iter(f"{SVG}text")] == ["one <1>", "first", "two", "three", "to"]
    paths = [each.get("d") for each in svg.iter(f"{SVG}path") if "arrow" in (each.get("class") or "")]
    assert paths == ["M176 47L216 47", "M96 78L96 116", "M296 78Q196 138 96 78"]


def test_an_exchange_has_messages_and_notes():
    svg = ElementTree.fromstring(Exchange("it", ("a", "b"), [Step("a", "b", "hi"), Step("b", "b", "thinks")]).svg("it"))
    assert [each.text for each in svg.iter(f"{SVG}text")] == ["a", "b", "hi", "thinks"]
    assert len(list(svg.iter(f"{SVG}rect"))) == 1 + 2 + 1


def test_the_site_has_diagrams_in_its_pages_and_pictures_beside_them():
    html = '<p><img alt="A put" src="../pictures/put.svg" /> <img alt="x" src="../pictures/fail-master.svg" /></p>'
    after = site.on_page_content(html, page=None, config=None, files=None)
    assert '<span class="diagram"><svg class="diagram"' in after
    assert '<img alt="x" src="../pictures/fail-master.svg" />' in after
    assert site.on_page_content("<code>--any-port</code> <code>a b</code>", page=None, config=None, files=None) == (
        '<code class="word">--any-port</code> <code>a b</code>'
    )
