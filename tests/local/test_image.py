"""The image of servers and writers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_IMPORT = """
import sys
sys.path[:] = [sys.argv[1], *(path for path in sys.path if path != sys.argv[2])]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import commit_coord.local.container
print(commit_coord.local.container.__file__)
"""


def test_what_fetches_the_jars_of_an_image_needs_no_more_than_what_is_copied_for_it(tmp_path: Path) -> None:
    """It goes in before the rest of the package does."""
    copied = [
        line.split()[1:]
        for line in (_ROOT / "docker" / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "fetch/" in line
    ]
    for *sources, target in copied:
        for source in sources:
            if (_ROOT / source).is_dir():
                shutil.copytree(_ROOT / source, tmp_path / target)
            else:
                (tmp_path / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(_ROOT / source, tmp_path / target)
    command = [sys.executable, "-I", "-c", _IMPORT, str(tmp_path / "fetch"), str(_ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert done.stdout.startswith(str(tmp_path))
