"""The names that `import commit_coord` offers."""

from __future__ import annotations

import subprocess
import sys

import commit_coord


def test_every_public_name_can_be_used() -> None:
    assert [] == [name for name in commit_coord.__all__ if getattr(commit_coord, name, None) is None]
    assert {*commit_coord.__all__} <= {*dir(commit_coord)}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(commit_coord, "load_catalogue")


def test_nothing_is_imported_before_it_is_used() -> None:
    """PyArrow, PyIceberg and SQLAlchemy take most of a second."""
    code = (
        "import sys, commit_coord\n"
        "heavy = {'pyarrow', 'pyiceberg', 'sqlalchemy'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "from commit_coord import load_catalog, CommitConflict\n"
        "assert 'pyiceberg' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
