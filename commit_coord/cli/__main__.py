"""``python -m commit_coord.cli`` is ``commit-coord``."""

from commit_coord.cli.app import main

main()
