"""MkDocs hooks of `make docs`: the pages at the root of the repository are part of the site.

A page in docs/ links to `../ARCHITECTURE.md`, which is right in the repository. MkDocs knows files below docs/ alone,
so the root's pages are added below `project/`, and links are rewritten in both directions.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
PREFIX = "project"

_LINK = re.compile(r"(\]\(|src=\")(?!https?:)([^)#\s\"]+)")


def on_files(files: Files, config: Any) -> Files:
    for name in ROOT_PAGES:
        path = f"{PREFIX}/{name if name.endswith('.md') else name + '.txt'}"
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links relative to the page's place in the site."""
    site_path = page.file.src_uri
    repository_path = site_path.removeprefix(f"{PREFIX}/") if site_path.startswith(PREFIX) else f"docs/{site_path}"

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path), link[2]))
        place = site_place(target)
        if place is None:
            return link[0]
        return link[1] + posixpath.relpath(place, posixpath.dirname(site_path) or ".")

    return _LINK.sub(rewritten, markdown)


def site_place(repository_path: str) -> str | None:
    """The site's path of a repository file; None if the site does not have it."""
    if repository_path in ROOT_PAGES:
        return f"{PREFIX}/{repository_path if repository_path.endswith('.md') else repository_path + '.txt'}"
    if repository_path == "docs/adr":
        return "adr/index.md"
    if repository_path.startswith("docs/"):
        return repository_path.removeprefix("docs/")
    return None
