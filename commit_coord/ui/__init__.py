"""The page: who holds and who waits, what became of commits, and how to free locks that their owners do not release.

It answers requests as values and knows no server: ``rest`` serves it, for ``commit-coord serve`` and for
``commit-coord ui``.
"""

from commit_coord.ui.pages import Pages
from commit_coord.ui.visiting import Shown, Visit, Visitor

__all__ = ["Pages", "Shown", "Visit", "Visitor"]
