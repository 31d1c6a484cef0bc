"""Builds the manual: ``make docs``.

The pages link to each other, to the README and to sources by relative paths, as they lie in the repository. The
generator takes one folder of pages, so what the pages need is copied to a temporary folder, in the same layout. The
build is strict: a broken link, a broken anchor, and a page that the navigation lacks are errors.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path
from typing import Any

from commit_coord.spark import options

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("mkdocs.yml")

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
"""The pages of the manual outside of ``docs/``, in addition to those of :data:`FOLDERS`."""

FOLDERS = ("docs", "bench/results")

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
_LITERAL = re.compile(r"::(</p>\s*<div class=\"highlight\">)")
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(<code>)~?")


def stage(folder: Path) -> None:
    """Copy the pages, and the files to which they link, to *folder*."""
    wanted = [ROOT / name for name in TOP]
    for name in FOLDERS:
        wanted += [path for path in (ROOT / name).rglob("*") if path.suffix in {".md", ".png", ".svg", ".css"}]
    for page in [path for path in wanted if path.suffix == ".md"]:
        for target in _LINK.findall(page.read_text()):
            linked = Path(os.path.normpath(page.parent / target))
            if linked.is_file() and linked.is_relative_to(ROOT):
                wanted.append(linked)
    for path in wanted:
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with the references of docstrings as code, and the options that a docstring gets at run time.

    The generator calls this for each page.
    """
    for mark, lines in {"{options}": options.help_text(), "{listing options}": options.listing_help()}.items():
        html = html.replace(mark, escape(textwrap.dedent(lines), quote=False))
    return _ROLE.sub(r"\1", _LITERAL.sub(r":\1", html))


def build(site: Path) -> None:
    """Build the manual in the folder *site*."""
    # Announces another project at each start.
    os.environ["NO_MKDOCS_2_WARNING"] = "true"
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    logging.basicConfig(format="docs: %(levelname)s: %(message)s", level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="commit-coord-docs-") as name:
        stage(Path(name))
        config = load_config(str(CONFIGURATION), docs_dir=name, site_dir=str(site), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        try:
            build_site(config)
        finally:
            config.plugins.on_shutdown()


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "site")
