"""Generated pages are up to date with `make docs`, and links have targets."""

import re

import pytest

from tests.tidy.tree import ROOT
from tools import docs

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
HEADING_SIZE_MAX = 70


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_up_to_date(name):
    text = (docs.DOCS / name).read_text()
    assert docs.PAGES[name](text) == text, "run: make docs"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_heading_is_a_line_of_its_own(path):
    """A tool that wraps lines can append the paragraph to its heading."""
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in re.findall(r"^#+ .*", prose, re.MULTILINE) if len(line) > HEADING_SIZE_MAX]
    assert not long


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_table_has_no_key_twice(path):
    """Two rows of a promise or a module with different texts: one of them is outdated."""
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
        keys = re.findall(r"^\| (`[^`|]+`) \|", table, re.MULTILINE)
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice


def test_every_target_of_make_is_explained():
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = (ROOT / "docs" / "hacking.md").read_text()
    assert [each for each in targets if f"| `make {each}`" not in text and f", `make {each}`" not in text] == []
