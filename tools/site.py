"""Hooks of mkdocs: files above `docs/` become pages, and links to source files become plain text.

On the forge a page links to `../CONTRIBUTING.md` and to source files. The site has the former as a page and the latter
not at all.
"""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.docs import DOCS

ABOVE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ABOVE:
        text = (DOCS.parent / name).read_text()
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    return LINK.sub(lambda link: linked(link, page.file.src_uri.count("/")), markdown)


def linked(link: re.Match[str], depth: int) -> str:
    """The link as the site has it; `depth` is how far the page lies below `docs/`."""
    text, target = link.groups()
    path, hash_sign, anchor = target.partition("#")
    up = "../" * (depth + 1)
    if path.startswith(up):
        path = path.removeprefix(up)
        return f"[{text}]({'../' * depth}{path}{hash_sign}{anchor})" if path in ABOVE else text
    is_source = path and "://" not in path and depth == 0 and not (DOCS / path).exists() and path not in ABOVE
    return text if is_source else link[0]
