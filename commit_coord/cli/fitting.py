"""Tables that fit their screen: less important columns are dropped, long texts are shortened, or folded at words.

Nothing is folded into single letters: a word that is longer than its column is cut into even pieces.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blanks between two columns."""

_CUT = "…"

_TAB = 8

WHOLE = sys.maxsize
"""The ``least`` of a column whose texts are whole as long as another column can be dropped."""


def cut_at_end(text: Text, width: int) -> Text:
    """Return *text* in at most *width* columns, without its end if it is too long."""
    if text.cell_len <= width:
        return text
    cut = text.copy()
    cut.truncate(width, overflow="ellipsis")
    return cut


def cut_in_middle(text: Text, width: int) -> Text:
    """Return *text* in at most *width* columns, without its middle if it is too long: texts differ at both ends."""
    if text.cell_len <= width or width <= len(_CUT) or text.cell_len != len(text):
        return cut_at_end(text, width)
    head = (width - len(_CUT)) // 2
    return Text.assemble(text[:head], _CUT, text[len(text) - (width - len(_CUT) - head) :])


def folded(text: Text, width: int) -> Text:
    """Return *text* in lines of at most *width* columns, ended at blanks; longer words are cut into even pieces."""
    text = text.copy()
    text.expand_tabs(_TAB)
    lines = text.split("\n", allow_blank=True)
    return Text("\n").join(piece for line in lines for piece in _pieces(line, width))


def _pieces(line: Text, width: int) -> list[Text]:
    starts, used = [], 0
    for found in re.finditer(r"(\s*)(\S+)", line.plain):
        blanks, letters, length = cell_len(found[1]), len(found[2]), cell_len(found[2])
        if blanks and used + blanks + length > width:
            starts.append(found.start(2))
            used = blanks = 0
        pieces = -(-length // (width if length == letters else max(1, width - 1)))  # a wide letter may not fit in
        starts += [found.start(2) + letters * piece // pieces for piece in range(1, pieces)]
        used = used + blanks + length if pieces == 1 else -(-length // pieces)
    pieces_of_line = line.divide(starts)
    for one in pieces_of_line:
        one.rstrip()
    return [one for one in pieces_of_line if one] or [Text()]


@dataclass(frozen=True, slots=True)
class ScreenColumn:
    """A column of a table that fits.

    Args:
        name: Its heading.
        rank: The column with the highest rank is dropped first. Columns of rank 0 stay, and are shortened.
        least: A column of rank 0 is not made narrower than this as long as another column can be dropped.
        right: Whether it is aligned to the right.
        cut: How its texts are shortened to a width.
        folds: Whether they are folded instead, so that nothing of them is lost.
        below: Above 0, the column gets a line of its own below the row if otherwise a column of this rank, or of a
            lower one, were dropped or narrower than its least.
    """

    name: str
    rank: int
    least: int = 0
    right: bool = False
    cut: Callable[[Text, int], Text] = cut_at_end
    folds: bool = False
    below: int = 0


@dataclass(slots=True)
class FittingTable:
    """A table that is laid out when it is printed, as wide as the screen is then.

    Args:
        columns: From left to right.
        title: A line above it, if any.
        empty: The text after the title if there are no rows.
        rows: A text for each column.
    """

    columns: Sequence[ScreenColumn]
    title: str = ""
    empty: str = ""
    rows: list[Sequence[Text]] = field(default_factory=list)

    def add_row(self, *texts: Text | str) -> None:
        """Append a row."""
        self.rows.append([text if isinstance(text, Text) else Text(text) for text in texts])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the title and the table."""
        if self.empty and not self.rows:
            yield Text(f"{self.title}: {self.empty}")
            return
        if self.title:
            yield Text(self.title, style="bold")
        natural, room = self.natural, options.max_width
        widths = _widths(self.columns, natural, room)
        for place, column in enumerate(self.columns):
            if column.below and _gives_way(self.columns, natural, widths, column.below):
                yield from self._with_lines_below(place, room)
                return
        yield self._joined(widths, self.rows)

    def _with_lines_below(self, below: int, room: int) -> Iterator[RenderableType]:
        """Yield the table, with the column *below* on a line below each row."""
        natural = [0 if place == below else width for place, width in enumerate(self.natural)]
        widths, column = _widths(self.columns, natural, room), self.columns[below]
        width = room - _GAP
        yield self._joined(widths, [])
        yield Text(" " * _GAP + column.name, style="bold")
        for row in self.rows:
            yield self._joined(widths, [row], header=False)
            for line in folded(column.cut(row[below], max(width, column.least)), width).split("\n"):
                yield Text(" " * _GAP) + line

    def _joined(self, widths: dict[int, int], rows: Sequence[Sequence[Text]], *, header: bool = True) -> Table:
        made = Table(header_style="bold", box=None, pad_edge=False, show_header=header)
        for place, width in widths.items():
            column = self.columns[place]
            made.add_column(
                cut_at_end(Text(column.name), width),
                justify="right" if column.right else "left",
                width=width,
                no_wrap=True,
            )
        for row in rows:
            made.add_row(*(_fitted(row[place], self.columns[place], width) for place, width in widths.items()))
        return made

    @property
    def natural(self) -> list[int]:
        """The width that each column would like."""
        return [
            max([cell_len(column.name), *(row[place].cell_len for row in self.rows)])
            for place, column in enumerate(self.columns)
        ]


def _fitted(text: Text, column: ScreenColumn, width: int) -> Text:
    return folded(text, width) if column.folds else column.cut(text, width)


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table of which nothing is left out: on a narrow screen the columns of a row are one below the other.

    Args:
        columns: Their headings.
        rows: A text for each column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table."""
        table = FittingTable([ScreenColumn(name, 0) for name in self.columns], rows=[*self.rows])
        if sum(table.natural) + _GAP * (len(self.columns) - 1) <= options.max_width:
            yield table
            return
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            made = Table(show_header=False, box=None, pad_edge=False)
            made.add_column(style="bold", no_wrap=True)
            made.add_column(no_wrap=True)
            room = max(1, options.max_width - _GAP - max(map(cell_len, self.columns)))
            for name, text in zip(self.columns, row, strict=True):
                made.add_row(name, folded(text, room))
            yield made


def _widths(columns: Sequence[ScreenColumn], natural: Sequence[int], room: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its place; *natural* is what each of them would like."""
    shown = [place for place, _ in enumerate(columns) if natural[place]]

    floors = _floors(columns, natural)

    def least() -> int:
        return sum(floors[place] for place in shown) + _GAP * (len(shown) - 1)

    while least() > room and (droppable := [place for place in shown if columns[place].rank]):
        shown.remove(max(droppable, key=lambda place: columns[place].rank))
    widths = {place: natural[place] for place in shown}
    elastic = sorted((place for place in shown if columns[place].rank == 0), key=lambda place: natural[place])
    left = room - _GAP * (len(shown) - 1) - sum(natural[place] for place in shown if place not in elastic)
    if least() > room:  # nothing is left to be dropped
        floors = [0] * len(columns)
    for number, place in enumerate(elastic):  # the narrowest first: what it does not need is for the others
        most = left - sum(floors[other] for other in elastic[number + 1 :])
        fair = max(floors[place], left // (len(elastic) - number))
        widths[place] = max(1, min(natural[place], fair, most))
        left -= widths[place]
    return widths


def _floors(columns: Sequence[ScreenColumn], natural: Sequence[int]) -> list[int]:
    """Return the least width of each column, if it is shown."""
    return [width if column.rank else min(width, column.least) for column, width in zip(columns, natural, strict=True)]


def _gives_way(columns: Sequence[ScreenColumn], natural: Sequence[int], widths: dict[int, int], rank: int) -> bool:
    """Return whether with these *widths* a column of at most this *rank* is dropped, or narrower than its least."""
    floors = _floors(columns, natural)
    return any(widths.get(place, 0) < floors[place] for place, column in enumerate(columns) if column.rank <= rank)
