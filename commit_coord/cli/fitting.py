"""Tables that fit their screen: less important columns are dropped, long texts are shortened, or folded at words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blanks between two columns."""

_CUT = "…"


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
    """

    name: str
    rank: int
    least: int = 0
    right: bool = False
    cut: Callable[[Text, int], Text] = cut_at_end
    folds: bool = False


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
        widths = _widths(self.columns, self.natural, options.max_width)
        made = Table(header_style="bold", box=None, pad_edge=False)
        for place, width in widths.items():
            column = self.columns[place]
            made.add_column(
                cut_at_end(Text(column.name), width),
                justify="right" if column.right else "left",
                width=width,
                no_wrap=not column.folds,
                overflow="fold",
            )
        for row in self.rows:
            made.add_row(*(_fitted(row[place], self.columns[place], width) for place, width in widths.items()))
        yield made

    @property
    def natural(self) -> list[int]:
        """The width that each column would like."""
        return [
            max([cell_len(column.name), *(row[place].cell_len for row in self.rows)])
            for place, column in enumerate(self.columns)
        ]


def _fitted(text: Text, column: ScreenColumn, width: int) -> Text:
    return text if column.folds else column.cut(text, width)


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
            made.add_column(overflow="fold")
            for name, text in zip(self.columns, row, strict=True):
                made.add_row(name, text)
            yield made


def _widths(columns: Sequence[ScreenColumn], natural: Sequence[int], room: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its place; *natural* is what each of them would like."""
    shown = [place for place, _ in enumerate(columns) if natural[place]]

    def least() -> int:
        wanted = (min(natural[p], columns[p].least) if columns[p].rank == 0 else natural[p] for p in shown)
        return sum(wanted) + _GAP * (len(shown) - 1)

    while least() > room and (droppable := [place for place in shown if columns[place].rank]):
        shown.remove(max(droppable, key=lambda place: columns[place].rank))
    widths = {place: natural[place] for place in shown}
    elastic = sorted((place for place in shown if columns[place].rank == 0), key=lambda place: natural[place])
    left = room - _GAP * (len(shown) - 1) - sum(natural[place] for place in shown if place not in elastic)
    for number, place in enumerate(elastic):  # the narrowest first: what it does not need is for the others
        widths[place] = max(1, min(natural[place], left // (len(elastic) - number)))
        left -= widths[place]
    return widths
