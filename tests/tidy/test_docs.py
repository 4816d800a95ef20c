"""Generated pages are up to date with `make docs`, and links have targets."""

import re

import pytest

from tests.tidy.tree import ROOT
from tools import docs

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_up_to_date(name):
    text = (docs.DOCS / name).read_text()
    assert docs.PAGES[name](text) == text, "run: make docs"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
