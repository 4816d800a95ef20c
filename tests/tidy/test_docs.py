"""Documentation that is made from the code says what the code does, and links lead somewhere."""

import re

import pytest

from rmqkit.testing.compatibility import page
from tests.tidy.tree import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_compatibility_page_is_what_the_tables_say():
    assert (ROOT / "docs" / "compatibility.md").read_text() == page()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
