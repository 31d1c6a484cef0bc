"""Hints name the smallest extra that installs what is missing."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import commit_coord
from commit_coord.extras import EXTRA_OF, install, install_module, missing

ROOT = Path(__file__).parents[2]
MODULES = packages_distributions()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages(extra: str) -> set[str]:
    """Return the packages that *extra* installs, those of the extras in it too."""
    found = set()
    for needed in map(Requirement, PROJECT["optional-dependencies"][extra]):
        own = canonicalize_name(needed.name) == canonicalize_name(PROJECT["name"])
        found |= {name for inner in needed.extras for name in packages(inner)} if own else {needed.name}
    return found


@pytest.mark.parametrize("module, extra", EXTRA_OF.items())
def test_no_smaller_extra_installs_the_module(module: str, extra: str) -> None:
    providers = {canonicalize_name(name) for name in MODULES.get(module, [])}
    if not providers:
        pytest.skip(f"{module} is not installed")
    helping = [name for name in PROJECT["optional-dependencies"] if providers & set(packages(name))]
    assert extra in helping
    assert len(packages(extra)) == min(len(packages(name)) for name in helping)


def test_every_package_of_an_extra_has_a_hint() -> None:
    modules: dict[str, set[str]] = {}
    for module, distributions in MODULES.items():
        for name in distributions:
            modules.setdefault(canonicalize_name(name), set()).add(module)
    wanted = {canonicalize_name(name) for extra in PROJECT["optional-dependencies"] for name in packages(extra)}
    installed = wanted & modules.keys()
    assert len(installed) > 5
    assert [] == sorted(name for name in installed if not modules[name] & EXTRA_OF.keys())


def test_a_hint_names_the_extra_or_the_package() -> None:
    assert install("spark", "serve") == "pip install 'commit-coord[spark,serve]'"
    assert install_module("sqlglot.expressions") == install("sql")
    assert install_module("somewhere_else.part") == "pip install somewhere_else"


def test_the_error_of_a_missing_package_has_the_hint_and_names_it() -> None:
    error = missing(ModuleNotFoundError("No module named 'sqlglot'", name="sqlglot"))
    assert ("No module named 'sqlglot': pip install 'commit-coord[sql]'", "sqlglot") == (str(error), error.name)


def test_the_error_of_another_module_stays_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'commit_coord.nope'", name="commit_coord.nope")
    assert missing(error) is error


def test_the_version_is_the_one_that_the_build_reads() -> None:
    text = (ROOT / "commit_coord" / "version.py").read_text()
    assert re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    assert f'"{commit_coord.__version__}"' in text
