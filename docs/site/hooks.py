"""Builds the site from the pages where they are: hooks of MkDocs, which `make docs` runs.

Every tracked page of Markdown is a page of the site, at the path that it has here. So relative links lead to the same page on
GitHub and on the site. A file of another kind that a page links to is copied. The built site loads nothing from other hosts.
"""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from os.path import normpath
from pathlib import Path
from posixpath import dirname, join
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
# What a browser loads by itself: scripts, styles, images, fonts.
LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:)?//|<link\b[^>]*\brel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//'
)


def pages() -> list[str]:
    """Paths of all pages that are tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({path for path in found if (ROOT / path).is_file()})


def linked_files(page: str) -> set[str]:
    """Paths of the files of other kinds to which a page links."""
    targets = (normpath(join(dirname(page), link)) for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")))
    return {path for path in targets if not path.endswith(".md") and (ROOT / path).is_file()}


def without_stars(nav: list[Any], found: list[str]) -> list[Any]:
    """Returns the navigation with the pages of each folder in the place of its star."""
    named = set(re.findall(r"[\w./-]+\.md", repr(nav)))
    result: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            result += [{title: without_stars(below, found) if isinstance(below, list) else below} for title, below in entry.items()]
        elif "*" in entry:
            result += [page for page in found if fnmatch(page, entry) and page not in named]
        else:
            result.append(entry)
    return result


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = without_stars(config.nav or [], pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    found = pages()
    for path in sorted({*found, *(linked for page in found for linked in linked_files(page))}):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Raises if a page of the site would load something from another host."""
    from mkdocs.exceptions import PluginError

    for page in Path(config.site_dir).rglob("*.html"):
        if found := LOADED.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} loads from another host: {found[0]}")
