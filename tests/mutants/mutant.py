"""One thing wrong with the code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One thing wrong.

    Args:
        name: What is missing.
        file: Below ``commit_coord``.
        old: Its text, which the file contains once.
        new: Instead.
        test: Notices.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    def applied(self) -> str:
        """Return the file with the edit.

        Raises:
            ValueError: The file does not contain the old text exactly once.
        """
        text = (ROOT / "commit_coord" / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutant {self.name}: {self.file} has its text {text.count(self.old)} times")
        return text.replace(self.old, self.new)
