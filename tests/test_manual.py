"""The manual: each page has its place, the strict build accepts it, its recipes run, and its sentences are plain."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import commit_coord
from commit_coord import errors, events
from commit_coord.locks import public
from tests.packaging.walk import blocks
from tests.test_docs import rows

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILD = DOCS / "site" / "build.py"
TEMPLATES = ROOT / "commit_coord" / "ui" / "templates"

BANNED = (
    "belong to nobody",
    "belongs to nobody",
    "can't keep its locks there",
    "carries along",
    "circle of waits",
    "circles of waits",
    "does not let us in",
    "ended by nobody",
    "found out at the first commit",
    "have tables locked in both",
    "in this moment",
    "it is waited for",
    "lone writer",
    "nobody carries out",
    "of others what is seen",
    "only who takes part",
    "repeated after anything",
    "slower writer",
    "so long the",
    "stand in line",
    "accept an age below",
    "take an age below",
    "that it can't have",
    "there is no third way",
    "wait and fail",
    "waits for nobody",
    "whatever dies",
    "where a fence ends",
    "without a word",
    "writers that ask seldom",
)
"""Riddles and dialect, in lower case, that readers had to read twice."""

PRONOUNS = re.compile(r"\b(ours|theirs|somebody else|(?:is|are|was|were) told|whoever|beside)\b")
"""In place of which a name, or a verb with its subject, is plainer."""

RIDDLES = re.compile(r"(?<![a-z])([Tt]old|TOLD|[Ss]aid|SAID|[Ww]hoever|[Bb]eside|BESIDE|[Ss]omebody else)(?![a-z])")
"""Words that no name and no comment of the sources has: ``_told``, ``ToldWaits``, ``beside``."""

NAMED = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
"""Finds the names of functions and classes."""

SPEAKING = [
    path
    for path in sorted((ROOT / "commit_coord").rglob("*.py"))
    if not {"bench", "testing"} & set(path.relative_to(ROOT).parts)
]
"""The sources whose texts users read: helps, messages, errors, what a command prints."""


def pages() -> list[str]:
    """Return the pages of ``docs/``, relative to the root."""
    return sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))


def texts() -> list[str]:
    """Return the documents that users read, relative to the root."""
    return sorted({*(path.name for path in ROOT.glob("*.md")), *pages()})


def navigation() -> list[str]:
    """Return the pages that the navigation lists."""
    listed = (DOCS / "site" / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    return re.findall(r"(?<![\w./-])([\w./-]+\.md)$", listed, re.MULTILINE)


def test_the_navigation_lists_every_page_once() -> None:
    listed = navigation()
    assert sorted(page for page in listed if page.startswith("docs/")) == pages()
    assert len(set(listed)) == len(listed)
    assert [page for page in listed if not (ROOT / page).is_file()] == []


def test_the_index_names_every_page() -> None:
    """Except the decisions and the runbook, which have an index of their own."""
    index = (DOCS / "index.md").read_text()
    linked = {os.path.normpath(DOCS / target) for target in re.findall(r"\]\(([^)#]+)\)", index)}
    own = [page for page in pages() if page != "docs/index.md" and not re.match(r"docs/(decisions/\d|runbook/C)", page)]
    assert [page for page in own if str(ROOT / page) not in linked] == []


def test_the_index_and_the_navigation_have_the_same_classes() -> None:
    """Those of Diátaxis, each with the same pages in both."""
    classes = re.split(r"^## (.+)$", (DOCS / "index.md").read_text(), flags=re.MULTILINE)[1:]
    nav = (DOCS / "site" / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    tabs = re.split(r"^  - (.+):$", nav, flags=re.MULTILINE)[1:]
    indexed = {
        name: {os.path.relpath(os.path.normpath(DOCS / page), ROOT) for page in re.findall(r"\]\(([^)#]+\.md)\)", text)}
        for name, text in zip(classes[::2], classes[1::2], strict=True)
    }
    listed = {
        name: {page for page in re.findall(r"[\w./-]+\.md", text) if not re.match(r"docs/\w+/(\d|Commit)", page)}
        for name, text in zip(tabs[::2], tabs[1::2], strict=True)
        if name != "Start"
    }
    assert list(listed) == list(indexed) == ["Tutorials", "How-to guides", "Reference", "Explanation"]
    assert listed == indexed


def test_every_public_name_is_in_the_reference() -> None:
    reference = set(re.findall(r"^::: commit_coord\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert set(commit_coord.__all__) - {"__version__"} <= reference


@pytest.mark.parametrize("package", ["commit_coord.catalog", "commit_coord.spark", "commit_coord.sql"])
def test_every_name_of_a_package_is_in_the_reference(package: str) -> None:
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
    names = ast.literal_eval(re.search(r"^__all__ = (\[[^\]]*\])", source, re.MULTILINE)[1])  # type: ignore[index]
    reference = set(re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    again = {"commit_coord.catalog.load_catalog"}  # listed as commit_coord.load_catalog
    assert {f"{package}.{name}" for name in names} - again - reference == set()


USER_PAGES = [
    page for page in pages() if not re.match(r"docs/(decisions/|(ARCHITECTURE|TRACK_RECORD|api|cli|locks)\.md)", page)
]
"""Those that tell users which names to use; the names of commands are in ``docs/cli.md``."""


def named(document: str) -> set[str]:
    """Return the names of the package that *document* has users import or use, with their modules."""
    text = (ROOT / document).read_text()
    found = set(re.findall(r"`(commit_coord(?:\.\w+)+)`", re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)))
    modules = {"commit_coord": "commit_coord"}
    for block in blocks(ROOT / document):
        for node in ast.walk(ast.parse(block.code) if block.kind == "python" else ast.Module([], [])):
            if isinstance(node, ast.Import):
                modules |= {each.asname or each.name: each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.add(f"{modules[node.value.id]}.{node.attr}")
    return {name for name in found if name.startswith("commit_coord.")}


def meant(name: str) -> object:
    """Return the object that *name* names; None where it is a module, or no Python name."""
    module, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), last, None)
    except ImportError:
        return None
    return None if isinstance(found, ModuleType) else found


def in_the_reference() -> list[object]:
    """Return what ``docs/api.md`` documents."""
    return [meant(name) for name in re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE)]


@pytest.mark.parametrize("document", ["README.md", *USER_PAGES])
def test_every_name_that_a_page_has_users_import_is_in_the_reference(document: str) -> None:
    reference = in_the_reference()
    objects = {name: meant(name) for name in named(document) - {"commit_coord.__version__"}}
    assert [name for name, it in objects.items() if it is not None and not any(it is one for one in reference)] == []


def test_every_name_of_a_contract_for_users_is_in_the_reference() -> None:
    """The events, the errors, and what a lock manager of another package is written against."""
    reference = in_the_reference()
    assert None not in reference
    wanted = [*get_args(events.Event), events.Events, *(getattr(public, name) for name in public.__all__)]
    wanted += [getattr(errors, name) for name in rows(DOCS / "errors.md") if hasattr(errors, name)]
    assert [it for it in wanted if not any(it is one for one in reference)] == []


def riddles(text: str) -> list[str]:
    """Return what is not plain in *text*."""
    words = " ".join(text.lower().split())
    return [banned for banned in BANNED if banned in words] + PRONOUNS.findall(words)


def literals(source: Path) -> Iterator[str]:
    """Yield the texts in *source*, without the docstrings."""
    nodes = list(ast.walk(ast.parse(source.read_text())))
    own = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            own |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
            yield node.value


@pytest.mark.parametrize("document", texts())
def test_no_sentence_is_a_riddle(document: str) -> None:
    prose = re.sub(r"`[^`]*`", "", (ROOT / document).read_text())  # names of tests are code
    assert riddles(prose) == []


def test_no_message_is_a_riddle() -> None:
    """Not in a help, an error, or what a command prints; ``docs/cli.md`` has the docstrings that are helps."""
    found = [(path.relative_to(ROOT).as_posix(), text) for path in SPEAKING for text in literals(path) if riddles(text)]
    assert found == []


def test_no_name_and_no_comment_is_a_riddle() -> None:
    """The former name of an option of the bench is left."""
    sources = [path for folder in ("commit_coord", "examples", "integration") for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text().replace('"--beside"', "") for path in sources}
    tests = {path: "\n".join(NAMED.findall(path.read_text())) for path in (ROOT / "tests").rglob("*.py")}
    found = [
        (path.relative_to(ROOT).as_posix(), word)
        for path, text in (texts | tests).items()
        for word in RIDDLES.findall(text)
    ]
    assert found == []


@pytest.mark.parametrize("template", sorted(path.name for path in TEMPLATES.iterdir()))
def test_no_text_of_the_page_is_a_riddle(template: str) -> None:
    assert riddles(re.sub(r"<[^>]*>|\{[{%#].*?[}%#]\}", " ", (TEMPLATES / template).read_text())) == []


@pytest.mark.parametrize("package", ["duckdb", "polars"])
def test_a_recipe_runs_as_printed(package: str, tmp_path: Path) -> None:
    described = {
        "PYICEBERG_HOME": str(tmp_path),
        "PYICEBERG_DEFAULT_CATALOG": "shop",
        "PYICEBERG_CATALOG__SHOP__URI": f"coord+sqlite:///{tmp_path}/catalog.db",
        "PYICEBERG_CATALOG__SHOP__WAREHOUSE": f"file://{tmp_path}/warehouse",
        "PYTHONPATH": str(ROOT),
    }
    code = "\n".join(block.code for block in blocks(DOCS / "how-to" / f"{package}.md") if block.kind == "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | described,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_the_strict_build_accepts_the_manual(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BUILD, tmp_path / "site"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site" / "docs" / "api" / "index.html").read_text()
    assert len(reference) > 100_000
    assert "overwrite-filter (overwrite): Which rows" in reference
    assert "options}" not in reference
    built = {path: path.read_text() for path in (tmp_path / "site").rglob("index.html")}
    assert [path for path, text in built.items() if "```" in text] == []  # a block that is shown as text
    models = (tmp_path / "site" / "docs" / "model" / "index.html").read_text()
    assert (DOCS / "model.md").read_text().count("```mermaid") == models.count('<div class="sequence"><svg')
    assert 'class="mermaid"' not in models  # for which the theme loads a script from another server
