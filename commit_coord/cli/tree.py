"""Who holds and who waits, as a tree: database, table, partition, and at each of them the requests in their order.

However many locks there are, the tree has no more lines than it is given: what waits longest is opened first, and the
rest is shown as a count.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich.text import Text

from commit_coord.cli.fitting import WHOLE, FittingTable, ScreenColumn
from commit_coord.cli.output import duration
from commit_coord.cli.views import blocking_owner, cut_owner, expiry, lock_states, owner_width, short
from commit_coord.model import LockEntry, LockMode, LockScope, LockState

_AT_FIRST = 8
"""Lines below one node before others have had theirs; doubled as long as there is room."""


class WaiterWatch:
    """What is seen from one look to the next: since when a waiter that was seen holds its lock."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self._granted_ms: dict[str, int] = {}

    def look(self, entries: Sequence[LockEntry], *, now_ms: int) -> None:
        """Compare *entries* with those of the look before."""
        held = {entry.request_id for entry in entries if entry.state is LockState.ACQUIRED}
        granted = dict.fromkeys(self._waiting & held, now_ms)
        self._granted_ms = {key: since for key, since in (granted | self._granted_ms).items() if key in held}
        self._waiting = {entry.request_id for entry in entries} - held

    def since_ms(self, entry: LockEntry) -> int:
        """Return since when *entry* waits or holds; of what was held at the first look, since when it was asked for."""
        return self._granted_ms.get(entry.request_id, entry.requested_at_ms)


_COLUMNS = (
    ScreenColumn("resource, owner", 0, cut=cut_owner),
    ScreenColumn("state", 0, least=WHOLE),
    ScreenColumn("for", 1, right=True),
    ScreenColumn("expires in", 4),
    ScreenColumn("request", 2),
    ScreenColumn("", 3),
    ScreenColumn("", 5),
)


def lock_tree(entries: Sequence[LockEntry], watch: WaiterWatch, *, now_ms: int, title: str, lines: int) -> FittingTable:
    """Return *entries* as a tree of at most *lines* lines, the title and the header not counted."""
    root = _grown(entries, watch)
    made = FittingTable(_COLUMNS, title, empty="no locks")
    owners = {entry.request_id: entry.owner for entry in entries}
    behind = Counter(request_id for request_id in {e.request_id: e.blocked_by for e in entries}.values() if request_id)
    limit = _AT_FIRST
    shown = _layout(root, lines, limit)
    while limit < lines:
        limit *= 2
        shown = max(shown, _layout(root, lines, limit), key=lambda layout: sum(map(len, layout.values())))
    drawn = list(_walk(root, shown))
    states = lock_states(entry for _, item in drawn if (entry := _entry_of(item)) is not None)
    for guide, item in drawn:
        if isinstance(item, _Rest):
            made.add_row(Text(f"{guide}… {len(item.items):,} more: {item.counts}", style="dim"), "", "", "", "", "", "")
            continue
        entry = _entry_of(item)
        name = Text(f"{item.name} ", style="bold") if isinstance(item, _Node) else Text()
        if entry is None:
            assert isinstance(item, _Node)
            counts = Text("" if item in shown else item.counts, style="dim")
            made.add_row(Text.assemble(guide, name, counts), "", "", "", "", "", "")
            continue
        relation = f"{behind[entry.request_id]:,} behind it" if behind[entry.request_id] else ""
        if entry.blocked_by:
            relation = f"behind {short(entry.blocked_by)}"
        made.add_row(
            Text.assemble(guide, name, f"{_kind(entry)} {entry.owner}"),
            states[entry.request_id],
            duration(max(0, now_ms - watch.since_ms(entry))),
            expiry(entry),
            short(entry.request_id),
            relation,
            blocking_owner(entry, owners),
        )
    made.columns = [replace(_COLUMNS[0], least=owner_width(row[0].plain for row in made.rows)), *_COLUMNS[1:]]
    return made


@dataclass(slots=True, eq=False)
class _Node:
    """A resource, with what is locked on it and below it."""

    name: str
    path: tuple[str, ...]
    entries: list[LockEntry] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)
    held: int = 0
    waiting: int = 0
    waits_since_ms: int = 0
    """Of the longest wait, 0 where nobody waits."""

    @property
    def only(self) -> LockEntry | None:
        """The one lock that there is, which is shown on the line of its resource."""
        return self.entries[0] if len(self.entries) == 1 and not self.children else None

    @property
    def counts(self) -> str:
        return _counted(self.held, self.waiting)

    @property
    def items(self) -> list[LockEntry | _Node]:
        """What is shown right below: its own locks, then the resources in it, the longest wait first."""
        return [*self.entries, *sorted(self.children.values(), key=lambda node: (node.urgency[0], node.name))]

    @property
    def urgency(self) -> tuple[float, int, tuple[str, ...]]:
        return self.waits_since_ms or float("inf"), -self.waiting, self.path


@dataclass(slots=True)
class _Rest:
    """What there was no room for."""

    items: list[LockEntry | _Node]

    @property
    def counts(self) -> str:
        waiting = sum(i.waiting if isinstance(i, _Node) else i.state is LockState.WAITING for i in self.items)
        held = sum(i.held if isinstance(i, _Node) else i.state is LockState.ACQUIRED for i in self.items)
        return _counted(held, waiting)


_Item = LockEntry | _Node | _Rest


def _entry_of(item: _Item) -> LockEntry | None:
    """Return the lock on the line of *item*, None where the line has none."""
    match item:
        case LockEntry():
            return item
        case _Node():
            return item.only
        case _Rest():
            return None


def _grown(entries: Sequence[LockEntry], watch: WaiterWatch) -> _Node:
    """Return the root. The S that a lock holds on its parents is left out, except where a request waits for it."""
    above: dict[str, set[tuple[str, ...]]] = {}
    awaited: set[tuple[str | None, tuple[str, ...]]] = set()
    for entry in entries:
        path = entry.resource.path
        above.setdefault(entry.request_id, set()).update(path[:depth] for depth in range(1, len(path)))
        if entry.blocked_by:
            awaited.add((entry.blocked_by, path))
    blockers = {request_id for request_id, _ in awaited}
    root = _Node("", ())
    # Who is waited for, who waits, and then the rest: that one may be cut off.
    for entry in sorted(entries, key=lambda e: 1 if e.blocked_by else 0 if e.request_id in blockers else 2):
        path = entry.resource.path
        implied = entry.mode is LockMode.SHARED and path in above[entry.request_id]
        if implied and (entry.request_id, path) not in awaited:
            continue
        waits = entry.state is LockState.WAITING
        node = root
        for depth, name in enumerate((None, *path)):
            if name is not None:
                if name not in node.children:
                    node.children[name] = _Node(name, path[:depth])
                node = node.children[name]
            node.waiting += waits
            node.held += not waits
            if waits:
                since = watch.since_ms(entry)
                node.waits_since_ms = min(node.waits_since_ms or since, since)
        node.entries.append(entry)
    return root


def _layout(root: _Node, lines: int, limit: int) -> dict[_Node, list[_Item]]:
    """Return the lines below each node that is opened, at most *limit* below one and *lines* in all."""
    shown: dict[_Node, list[_Item]] = {}
    waiting = [(root.urgency, root)]
    while waiting and lines >= 1:
        _, node = heapq.heappop(waiting)
        items = node.items
        room = min(limit, lines, max(2, (lines + 1) // 2))  # half of the rest is for what lies below
        below: list[_Item] = list(items) if len(items) <= room else [*items[: room - 1], _Rest(items[room - 1 :])]
        shown[node] = below
        lines -= len(below)
        for item in below:
            if isinstance(item, _Node) and item.only is None:
                heapq.heappush(waiting, (item.urgency, item))
    return shown


def _walk(node: _Node, shown: dict[_Node, list[_Item]], indent: str = "") -> Iterator[tuple[str, _Item]]:
    """Yield each line with the strokes in front of it. Below the root there are none."""
    below = shown.get(node, [])
    for number, item in enumerate(below):
        last = number == len(below) - 1
        top = not node.path
        yield indent + ("" if top else "└─ " if last else "├─ "), item
        if isinstance(item, _Node):
            yield from _walk(item, shown, indent + ("" if top else "   " if last else "│  "))


def _kind(entry: LockEntry) -> str:
    return "commit" if entry.scope is LockScope.COMMIT else entry.mode.letter


def _counted(held: int, waiting: int) -> str:
    return f"{held:,} held, {waiting:,} waiting" if waiting else f"{held:,} held"
