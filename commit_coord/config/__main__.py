"""``python -m commit_coord.config`` prints ``docs/configuration.md``."""

from commit_coord.config import render

print(render(), end="")
