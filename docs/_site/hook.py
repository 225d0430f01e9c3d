"""Hooks of MkDocs for this site.

The README is the first page. Each linked file of the repository has a page. The code fills some tables. The search
ignores stop words.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Final

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from tables import with_causes, with_tables

ROOT: Final = Path(__file__).parents[2]
_LINK: Final = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
#: The languages by which Pygments highlights a file, by its name or suffix.
_LANGUAGES: Final = {"Dockerfile": "docker", ".service": "ini", ".yml": "yaml", ".example": "bash", "": "text"}


class PlainDocstrings(griffe.Extension):
    """Removes ``::`` and ``:class:`` from docstrings. Editors need them, Markdown does not."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: object) -> None:
        """Remove both from an object's docstring."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = re.sub(
                r"::$|:(?:class|meth|func):(?=`)", _plain, obj.docstring.value, flags=re.MULTILINE
            )


def _plain(found: re.Match[str]) -> str:
    return ":" if found[0] == "::" else ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, and a page for each file of the repository that a page links to."""
    home = {file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()}
    todo = ["README.md", *_linked(home.values())]
    while todo:
        path = todo.pop()
        if path.startswith("docs/") or path in home.values():
            continue
        uri = _uri(path)
        home[uri] = path
        files.append(File.generated(config, uri, content=_content(path)))
        todo += _linked([path])
    config.extra["home"] = home
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:  # noqa: ARG001 - MkDocs passes it by name
    """Remember the pages of the navigation."""
    config.extra["in_nav"] = {page.file.src_uri for page in nav.pages}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Turn a page's links to files of the repository into links to pages of the site.

    Pages outside the navigation, such as the sources of examples, are excluded from the search.
    """
    if page.file.src_uri not in config.extra["in_nav"]:
        page.meta["search"] = {"exclude": True}
    home = config.extra["home"][page.file.src_uri]
    if not home.endswith(".md"):
        return markdown
    if home == "docs/cli.md":
        markdown = with_tables(markdown)
    elif home == "docs/reference/errors.md":
        markdown = with_causes(markdown)

    def link(found: re.Match[str]) -> str:
        path = _target(home, found[1])
        if path is None:
            return found[0]
        uri = posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"]({uri}{found[2] or ''})"

    return _LINK.sub(link, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove stop words from the queries of the site's search."""
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    worker.write_text((ROOT / "docs" / "_site" / "search.js").read_text() + worker.read_text())


def _target(home: str, link: str) -> str | None:
    """Return the linked file or folder of the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), link))
    return path if (ROOT / path).exists() else None


def _linked(homes: object) -> list[str]:
    """Return the files of the repository that pages link to."""
    found = []
    for home in homes:
        if home.endswith(".md"):
            text = (ROOT / home).read_text()
            found += [path for match in _LINK.finditer(text) if (path := _target(home, match[1]))]
    return found


def _uri(path: str) -> str:
    """Return the address of a file's or folder's page."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}" if path.endswith(".md") else f"files/{path}.md"


def _content(path: str) -> str:
    place = ROOT / path
    if place.is_dir():
        names = sorted(name for name in os.listdir(place) if not name.startswith((".", "__")))
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    if path.endswith(".md"):
        return place.read_text()
    language = _LANGUAGES.get(place.suffix or place.name, place.suffix.removeprefix("."))
    return f"# {path}\n\n````{language}\n{place.read_text()}````\n"
