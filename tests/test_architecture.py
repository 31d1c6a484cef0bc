"""The shape of the repository: layers, top level, lock file, nothing of anybody's machine."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "bench",
    "commit_coord",
    "docker",
    "docs",
    "examples",
    "integration",
    "pyproject.toml",
    "requirements.lock",
    "tests",
}
"""All that the top level may hold, except for dot files."""


@cache
def files() -> tuple[Path, ...]:
    """Return every file that is in git or could be added to it, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return tuple(path for name in listing.split("\0") if name and (ROOT / (path := Path(name))).is_file())


@cache
def texts() -> dict[Path, str]:
    """Return the files that are text, with their text."""
    found = {}
    for path in files():
        raw = (ROOT / path).read_bytes()
        if b"\0" not in raw:
            found[path] = raw.decode()
    return found


def matches(pattern: str, *, exempt: frozenset[str] = frozenset()) -> list[str]:
    """Return ``file:line: text`` of every match of *pattern* in a text file."""
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts().items()
        if path.as_posix() not in exempt
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_layers() -> None:
    """Imports go down only, and the protocol reaches no clock, no chance and no driver."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_import_cycle() -> None:
    """Who imports whom is an order, so each module can be read after those that it imports; type checkers count too."""
    graph = grimp.build_graph("commit_coord", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_classes_are_small() -> None:
    """No class of the package has over 350 lines or 25 methods, unless ARCHITECTURE.md gives the reason by its name."""
    architecture = texts()[Path("docs/ARCHITECTURE.md")]
    reasons = set(re.findall(r"^\| `(\w+)` \| .*\w", architecture.partition("**Large classes.**")[2], re.MULTILINE))
    large = {
        node.name
        for path in files()
        if path.parts[0] == "commit_coord" and path.suffix == ".py"
        for node in ast.walk(ast.parse(texts()[path]))
        if isinstance(node, ast.ClassDef)
        and (
            node.end_lineno - node.lineno >= 350  # type: ignore[operator]  # of a parsed class it is there
            or sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body) > 25
        )
    }
    assert large == reasons


_OF_SEVERAL_CLASSES: dict[str, str] = {}
"""Names that two classes or type aliases of the product may share, and why."""


def defined(tree: ast.Module) -> list[str]:
    """Return the public classes and type aliases at the top of a module."""
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.BinOp)):
            names += [
                name.id for name in node.targets if isinstance(name, ast.Name) and re.match("[A-Z][a-z]", name.id)
            ]
    return [name for name in names if not name.startswith("_")]


def test_one_name_for_one_class() -> None:
    """A reader who meets the name of a class or of a type alias does not have to ask which one is meant."""
    places: dict[str, list[str]] = {}
    for path, text in texts().items():
        if (
            path.suffix == ".py"
            and path.parts[0] == "commit_coord"
            and path.parts[1] not in {"testing", "bench", "demo"}
        ):
            for name in defined(ast.parse(text)):
                places.setdefault(name, []).append(path.as_posix())
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in _OF_SEVERAL_CLASSES} == {}
    assert set(_OF_SEVERAL_CLASSES) <= set(several), "an exception that nothing needs any more"


def test_top_level() -> None:
    """What is at the top is agreed; everything else has a place below."""
    top = {path.parts[0] for path in files()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def pins() -> dict[str, list[str]]:
    """Return the locked versions of each package; several where they differ by Python version."""
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^([\w.-]+)(?:\[[\w,.-]+\])?==(\S+)", texts()[Path("requirements.lock")], re.MULTILINE
    ):
        pinned.setdefault(canonicalize_name(name), []).append(version)
    return pinned


def wanted() -> list[Requirement]:
    """Return every requirement that ``pyproject.toml`` names, without references to its own extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [
        *project["project"]["dependencies"],
        *(line for extra in project["project"]["optional-dependencies"].values() for line in extra),
        *project["dependency-groups"]["dev"],
    ]
    own = canonicalize_name(project["project"]["name"])
    return [needed for line in lines if canonicalize_name((needed := Requirement(line)).name) != own]


@pytest.mark.parametrize("needed", wanted(), ids=lambda needed: needed.name)
def test_lock_file_fits(needed: Requirement) -> None:
    """Each requirement of pyproject.toml is locked, in a version that it allows (else: make lock)."""
    versions = pins().get(canonicalize_name(needed.name), [])
    assert versions
    assert all(needed.specifier.contains(version, prereleases=True) for version in versions)


def test_every_dependency_has_its_reason() -> None:
    """The list of dependencies and the list of reasons are the same list."""
    reasons = re.findall(r"^\| `([\w.-]+)` \| .*\w", texts()[Path("docs/dependencies.md")], re.MULTILINE)
    assert sorted(reasons) == sorted({canonicalize_name(needed.name) for needed in wanted()})


def test_lock_file_has_a_hash_for_everything_and_names_no_registry() -> None:
    """The user who installs chooses where from; the hashes say what."""
    lock = texts()[Path("requirements.lock")]
    entries = re.split(r"\n(?=\S)", lock.strip())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in lock
    assert re.search(r"^\s*--(?!hash)", lock, re.MULTILINE) is None


def test_configuration_names_no_registry() -> None:
    """Mirrors and proxies are the machine's business."""
    configuration = {path for path in texts() if path.parts[0] in {".ci", "Makefile", "docker"}}
    found = matches(r"(index-url|find-links|trusted-host)[= ]\S*://|repositor(y|ies).*https?://")
    assert [line for line in found if Path(line.split(":")[0]) in configuration] == []


_HEED_TABLES = {
    r"\b(load_location_provider|load_file_io|_import_location_provider|_import_file_io)\b": "iceberg/storage.py",
    r"\b(_dataframe_to_data_files|write_file)\b": "table/data_files.py",
}
"""Functions of PyIceberg that import the classes and ask the hosts that properties name, and who may call them."""


@pytest.mark.parametrize("functions, place", _HEED_TABLES.items(), ids=_HEED_TABLES.values())
def test_the_properties_of_a_table_are_heeded_in_one_place(functions: str, place: str) -> None:
    """Every client that may write to a table can set them, so code that heeds them runs code of that client."""
    found = {line.split(":")[0] for line in matches(functions) if line.startswith("commit_coord/")}
    measured = "commit_coord/bench/phases.py"  # names what it times, and calls nothing
    assert {f"commit_coord/{place}"} == found - {measured}


def test_every_thread_local_has_its_reason() -> None:
    """An argument that travels in one is found by nobody who reads the calls."""
    names = {
        f"{path.relative_to('commit_coord')}, {name}"
        for path, text in texts().items()
        if path.parts[0] == "commit_coord" and path.suffix == ".py"
        for name in re.findall(r"^ *(?:self\.|class |return )?(\w+).*\bthreading\.local\b", text, re.MULTILINE)
    }
    row = r"^\| `([\w/]+\.py)`, `(\w+)`(?: and `(\w+)`)? \| .*\w"
    listed = re.findall(row, texts()[Path("docs/ARCHITECTURE.md")], re.MULTILINE)
    assert {f"{module}, {name}" for module, *some in listed for name in some if name} == names
    assert matches(r"from threading import .*\blocal\b") == []


def test_nothing_of_a_machine() -> None:
    """No home directory, no checkout path and no host name."""
    assert matches(r"(?<![\w.$}])/(root|home/(?!USER)\w+|Users/\w+|work|workspace)/\w") == []
    assert matches(re.escape(str(ROOT)) + r"\b") == []
    host = socket.gethostname()
    if len(host) >= 8 and not host.isalpha():  # "debian" or "localhost" is a word like any other
        assert matches(re.escape(host)) == []


def test_no_secret() -> None:
    """No private key, access key or token."""
    assert matches(r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\b(ghp|gho|xox[abp])[_-]\w{20}") == []
