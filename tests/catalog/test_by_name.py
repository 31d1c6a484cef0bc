"""Programs that open a catalog by its name, through PyIceberg, get the coordinated one or an error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.catalog.test_configuration import ROOT, run

_OPEN = """
    import json
    from pyiceberg.catalog import load_catalog
    from commit_coord.catalog import open_coord_uris
    open_coord_uris()
    open_coord_uris()
    print(json.dumps([type(load_catalog(name)).__name__ for name in ("ours", "typed", "plain")]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".pyiceberg.yaml").write_text(
        textwrap.dedent(f"""
        catalog:
          ours:
            uri: coord+sqlite:///{tmp_path}/c.db
            warehouse: file://{tmp_path}/w
            lock.acquire-timeout-ms: 1001
          typed:
            type: sql
            uri: coord+sqlite:///{tmp_path}/c.db
          plain:
            uri: sqlite:///{tmp_path}/p.db
        """)
    )
    return tmp_path


def test_pyiceberg_s_load_catalog_opens_coordinated_catalogs_by_name_once_configured(home: Path) -> None:
    assert run(_OPEN, home) == ["CoordinatedSqlCatalog", "CoordinatedSqlCatalog", "SqlCatalog"]


@pytest.mark.parametrize("name", ["ours", "typed"])
def test_pyiceberg_without_that_setting_refuses_them(home: Path, name: str) -> None:
    code = f"""
    import json
    from pyiceberg.catalog import load_catalog
    try:
        load_catalog({name!r})
    except Exception as error:
        print(json.dumps(str(error)))
    """
    assert "coord" in run(code, home)
    assert not (home / "c.db").exists()


def test_pyiceberg_s_command_line_works_on_a_coordinated_catalog(home: Path) -> None:
    def pyiceberg(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "commit_coord.cli", "pyiceberg", "--catalog", "ours", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYICEBERG_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        return ended.stdout

    pyiceberg("create", "namespace", "shop")
    assert "shop" in pyiceberg("list")
