"""The site's menu has every page of `docs/`; the API pages have all names of rmqkit.testing."""

import re

import yaml

from rmqkit import testing
from tests.tidy.tree import GROUP, ROOT, none

pytestmark = GROUP

#: sections that another page includes
PARTS = {
    "failover/timings.md",
    "performance/lake.md",
    "performance/latency.md",
    "performance/replicas.md",
    "performance/services.md",
    "performance/spark.md",
}


def test_every_page_is_in_the_menu():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/-]+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    none(sorted(pages - listed - PARTS))
    none(sorted(listed - pages - {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}))


def test_the_site_asks_no_other_host():
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["theme"]["font"] is False


def test_every_public_name_for_tests_has_its_entry():
    page = (ROOT / "docs/api/testing.md").read_text()
    none(name for name in testing.__all__ if not re.search(rf"^::: rmqkit\.testing\.\w+\.{name}$", page, re.MULTILINE))
