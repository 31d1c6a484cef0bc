"""What the documents list is what the code has."""

from __future__ import annotations

import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from commit_coord import config, errors
from commit_coord.cli import lock_table
from commit_coord.errors import CommitCoordError
from commit_coord.protocol.hierarchy import Operation
from commit_coord.spark import options, register
from commit_coord.spark.listings import LISTINGS
from tests.proof import links

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def rows(document: Path) -> dict[str, list[str]]:
    """Return the rows of the tables of *document*: the text of the first cell without its marks, and all cells."""
    found = {}
    for line in document.read_text().splitlines():
        if line.startswith("|") and not re.match(r"\|[\s|:-]*-[\s|:-]*$", line):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].replace("`", "")] = cells
    return found


def error_classes() -> list[type[CommitCoordError]]:
    """Return the error classes of the package."""
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, CommitCoordError)]


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_error_is_in_the_table(cls: type[CommitCoordError]) -> None:
    """Each error class has a row with its code and its bases outside of this package."""
    _, code, also, *_ = rows(DOCS / "errors.md")[cls.__name__]

    foreign = {base.__name__ for base in cls.__bases__ if not issubclass(base, CommitCoordError)} - {"Exception"}
    assert set(re.findall(r"`(\w+)`", also)) == foreign
    assert code.strip("`") == (cls.kind if "kind" in vars(cls) and cls is not CommitCoordError else "")


def test_configuration_is_rendered_from_the_table() -> None:
    """The committed document is what the code writes (else: make docs)."""
    assert (DOCS / "configuration.md").read_text() == config.render()


def test_lock_table_is_rendered_from_the_table() -> None:
    """The committed document is what the table of operations says (else: make docs), and has a row for each."""
    assert (DOCS / "locks.md").read_text() == lock_table.render()
    assert set(Operation) <= rows(DOCS / "locks.md").keys()


@pytest.mark.parametrize("key", [prop.key for prop in config.PROPERTIES])
def test_property_is_documented(key: str) -> None:
    """Each property has a row, and the row says something."""
    assert all(rows(DOCS / "configuration.md")[key][:2])


def test_readme_names_only_properties_that_exist() -> None:
    """The properties that the README shows are known, here or to PyIceberg."""
    known = {prop.key for prop in config.PROPERTIES} | {"py-catalog-impl", "uri", "warehouse"}
    section = (ROOT / "README.md").read_text().split("\n## Properties\n")[1].split("\n## ")[0]
    shown = {
        key for first in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for key in re.findall(r"`(.+?)`", first)
    }
    assert shown
    assert shown <= known


def test_options_of_spark_are_those_of_the_code() -> None:
    """The page and help() list each option."""
    assert options.markdown() in (DOCS / "spark.md").read_text()
    assert all(f"        {key} (" in str(register.__doc__) for key in options.OPTIONS)
    assert options.listing_markdown() in (DOCS / "spark.md").read_text()
    assert options.listing_help() in str(register.__doc__)


def test_columns_of_the_listings_are_those_of_the_code() -> None:
    text = (DOCS / "spark.md").read_text()
    for listing in LISTINGS:
        columns = [column.split()[0].strip("`") for column in listing.columns.split(",")]
        assert f"| `{listing.name}` | {', '.join(f'`{column}`' for column in columns)} |" in text


def test_links_lead_somewhere() -> None:
    """Each relative link in a document names a file, and each fragment a heading of it."""
    broken = []
    for document in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target, fragment in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
            path = (document.parent / target) if target else document
            if not path.exists() or (fragment and fragment not in anchors(path)):
                broken.append(f"{document.relative_to(ROOT)}: {target}#{fragment}")
    assert broken == []


def test_a_link_to_another_site_is_dead_if_its_server_lacks_the_page(tmp_path: Path) -> None:
    """``make links`` asks the servers; links to this machine, and what is code, are none."""
    (tmp_path / "index.html").touch()
    linked = "[a](https://a.example/b#c) <http://d.example> `<http://e.example>` [f](http://127.0.0.1:1/)"
    (tmp_path / "page.md").write_text(f"{linked}\n\n[g]: http://h.example\n")
    assert ["https://a.example/b", "http://d.example", "http://h.example"] == [*links.links(tmp_path)]
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert [200, 404] == [links.answered(f"{address}/{name}") for name in ("index.html", "gone.html")]
        server.shutdown()
        serving.join()


def anchors(document: Path) -> set[str]:
    """Return the fragments that a Markdown renderer makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("package", ["rest", "coordinator", "locks"])
def test_the_code_map_names_each_module_of_a_package(package: str) -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text()
    modules = {path.stem for path in (ROOT / "commit_coord" / package).glob("*.py")} - {"__init__"}
    assert [] == sorted(name for name in modules if not re.search(rf"`({package}/)?{name}(\.py)?`", text))
