"""The command line, ``commit-coord``: it prints and exits, and everything that it knows comes from below.

``docs/cli.md`` lists commands and exit codes; :mod:`commit_coord.cli.reference` writes it.
"""

from commit_coord.cli.app import app, main

__all__ = ["app", "main"]
