"""A user who installs an extra can use what it is for: nothing asks for the packages of another one.

A process of its own finds only the packages that ``pip install 'commit-coord[extra]'`` brings, whatever else is here.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

NEEDS: dict[str, set[str]] = {
    "commit_coord.catalog.hive": {"hive"},
    "commit_coord.catalog.metastore": {"hive"},
    "commit_coord.catalog.metastore.serde": set(),
    "commit_coord.catalog.migration": {"hive"},
    "commit_coord.cli.metastore": {"hive"},
    "commit_coord.cli.shell": {"sql"},
    "commit_coord.hms": {"hive"},
    "commit_coord.locks.hms": {"hive"},
    "commit_coord.locks.migration": {"hive"},
    "commit_coord.locks.zookeeper": {"zookeeper"},
    "commit_coord.observing.opentelemetry": {"otel"},
    "commit_coord.observing.prometheus": {"prometheus"},
    "commit_coord.rest": {"serve"},
    "commit_coord.spark": {"spark"},
    "commit_coord.sql": {"sql"},
    "commit_coord.ui": {"serve"},
}
"""Modules, with all in them, that need extras; every other one needs none."""

FOR_DEVELOPERS = ("commit_coord.bench", "commit_coord.demo", "commit_coord.testing")

ALONE = """
import sys
from importlib import import_module

missing, modules = map(set, eval(sys.argv[1]))

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""

IMPORTS = """
for module in sorted(modules):
    try:
        import_module(module)
    except Exception as error:
        print(f"{module}: {error}")
"""

COMMANDS = """
from typer.testing import CliRunner
import commit_coord, pyarrow
from commit_coord.cli import app

place = ["-c", "shop", "--uri", f"coord+sqlite:///{sys.argv[2]}/catalog.db", "--warehouse", f"file://{sys.argv[2]}"]
catalog = commit_coord.load_catalog("shop", uri=place[3], warehouse=place[5])
catalog.create_namespace("shop")
rows = pyarrow.table({"id": [1, 2]})
catalog.create_table("shop.sales", schema=rows.schema).append(rows)
for line in modules:
    ended = CliRunner().invoke(app, [*line, *place], prog_name="commit-coord")
    if ended.exit_code or ended.exception:
        print(line, ended.output, ended.exception)
"""

EXTRAS = sorted({extra for extras in NEEDS.values() for extra in extras})


def needed(package: str, extra: str) -> list[str]:
    """Return what *package* asks for: with *extra*, and always."""
    if package == "commit-coord":  # as it is, not as it was installed
        return list(PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"])
    try:
        return requires(package) or []
    except PackageNotFoundError:  # for another platform
        return []


def installed(extras: tuple[str, ...]) -> set[str]:
    """Return what ``pip install 'commit-coord[extras]'`` installs."""
    found: set[tuple[str, str]] = set()
    left = [("commit-coord", extra) for extra in ("", *extras)]
    while left:
        package, extra = left.pop()
        if (package, extra) in found:
            continue
        found.add((package, extra))
        for one in map(Requirement, needed(package, extra)):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(one.name), of) for of in ("", *one.extras)]
    return {package for package, _ in found}


def printed(extras: tuple[str, ...], of: list[object], code: str, *arguments: str) -> str:
    """Return what *code* prints in a process that has *extras* alone."""
    here = installed(extras)
    missing = [
        module
        for module, packages in packages_distributions().items()
        if module != "commit_coord" and not any(canonicalize_name(package) in here for package in packages)
    ]
    assert {"pytest", "xdist"} <= set(missing)
    command = [sys.executable, "-c", ALONE + code, repr((missing, of)), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout + (ended.stderr if ended.returncode else "")


def needs(module: str) -> set[str]:
    """Return the extras that *module* needs: what the longest name in ``NEEDS`` says."""
    names = [name for name in NEEDS if f"{module}.".startswith(f"{name}.")]
    return NEEDS[max(names, key=len)] if names else set()


def modules() -> list[str]:
    """Return all modules of the package but those of developers."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("commit_coord/**/*.py")]
    found = {".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"}
    return [name for name in found if not f"{name}.".startswith(tuple(f"{one}." for one in FOR_DEVELOPERS))]


@pytest.mark.parametrize("extras", [(), *((extra,) for extra in EXTRAS)], ids="".join)
def test_what_an_extra_is_for_can_be_imported_without_the_others(extras: tuple[str, ...]) -> None:
    wanted: list[object] = [name for name in modules() if needs(name) <= set(extras)]
    assert "" == printed(extras, wanted, IMPORTS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_documented_to_need_an_extra_does(extra: str) -> None:
    """Else it would be left out above."""
    wanted: list[object] = [name for name in modules() if needs(name) == {extra}]
    assert any(line.startswith("commit_coord.") for line in printed((), wanted, IMPORTS).splitlines())


@pytest.mark.parametrize(
    "extras, lines",
    [
        ((), ["locks", "commits shop.sales", "config", "orphans shop.sales"]),
        (("sql",), ["sql|SELECT * FROM shop.sales", "sql|INSERT INTO shop.sales VALUES (3)", "sql|SHOW LOCKS"]),
    ],
    ids=["none", "sql"],
)
def test_commands_work_with_the_extra_that_they_need_alone(
    extras: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    of: list[object] = [tuple(line.split("|") if "|" in line else line.split()) for line in lines]
    assert "" == printed(extras, of, COMMANDS, str(tmp_path))
