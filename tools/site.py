"""Hooks of mkdocs that adapt the pages of `docs/` to the site.

In the repository, pages link to `../CONTRIBUTING.md` and to source files. The site includes the
files in `ABOVE` as pages. It has no source files, so links to those become plain text.

Diagrams (`tools/diagrams.py`) become part of the page instead of pictures beside it. Their text can
then be selected, and they follow the theme.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tools.docs import DOCS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

#: files of the project's root that the site includes
ABOVE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
#: code that no browser should break, such as `--base-port`
WORD = re.compile(r"<code>([^\s<]{1,32})</code>")
IMAGE = re.compile(r'<img [^>]*src="[./]*(pictures/[\w-]+\.svg)"[^>]*>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name in ABOVE:
        text = (DOCS.parent / name).read_text()
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    if "\n## " not in markdown and "\n::: " not in markdown:
        # Wide tables get the room of a table of contents that would be empty.
        page.meta.setdefault("hide", ["toc"])
    return LINK.sub(lambda link: linked(link, page.file.src_uri.count("/")), markdown)


def on_page_content(html: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    html = WORD.sub(r'<code class="word">\1</code>', html)
    return IMAGE.sub(lambda image: drawn(image[0], (DOCS / image[1]).read_text()), html)


def drawn(image: str, svg: str) -> str:
    """Return a diagram as part of the page, in an element that scrolls; other pictures as is."""
    return f'<span class="diagram">{svg}</span>' if svg.startswith('<svg class="diagram"') else image


def linked(link: re.Match[str], depth: int) -> str:
    """Return the link for the site; `depth` is the number of folders below `docs/`."""
    text, target = link.groups()
    path, hash_sign, anchor = target.partition("#")
    up = "../" * (depth + 1)
    if path.startswith(up):
        path = path.removeprefix(up)
        return f"[{text}]({'../' * depth}{path}{hash_sign}{anchor})" if path in ABOVE else text
    is_source = path and "://" not in path and depth == 0 and not (DOCS / path).exists() and path not in ABOVE
    return text if is_source else link[0]
