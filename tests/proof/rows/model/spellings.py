"""Several spellings of one location: engines, and people, write each of them."""

from __future__ import annotations

from typing import Literal

Spelling = Literal["", "path", "slash", "one", "doubled"]
"""``file:///a/b`` as PyIceberg writes it, ``/a/b``, ``file:///a/b/``, ``file:/a/b`` as Hadoop does, ``file:///a//b``."""

SPELLINGS: tuple[Spelling, ...] = ("path", "slash", "one", "doubled")
"""All but the usual one."""


def spelled(path: str, spelling: Spelling) -> str:
    """Return the location of *path*, which is absolute, in a spelling."""
    match spelling:
        case "path":
            return path
        case "slash":
            return f"file://{path}/"
        case "one":
            return f"file:{path}"
        case "doubled":
            folder, _, name = path.rpartition("/")
            return f"file://{folder}//{name}"
    return f"file://{path}"
