"""Draws the sequence diagrams of the models as SVG, when the manual is built.

GitHub draws the same source with Mermaid. A page of the manual would have to load Mermaid from another server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from textwrap import wrap
from typing import Any

_COLUMN, _LINE, _CHARACTER = 190, 16, 6.4
"""The distance of two columns, the height of a line of text, the width of a character; in pixels."""

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)->>(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")


def draw(source: str, *_: Any, **__: Any) -> str:
    """Return *source*, a sequence diagram in Mermaid's notation, as SVG.

    Raises:
        ValueError: A line is none of those that the models write.
    """
    lines = [line.strip() for line in source.strip().splitlines()[1:]]
    names: dict[str, str] = {}
    steps: list[str] = []
    y = 3 * _LINE
    for line in lines:
        if found := _PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2]
            continue
        places = {key: _COLUMN * number + _COLUMN // 2 for number, key in enumerate(names)}
        if found := _MESSAGE.fullmatch(line):
            start, end = places[found[1]], places[found[2]]
            text = _wrapped(found[3], abs(end - start) - 10)
            y += _LINE * len(text) + 6
            steps += _text(text, (start + end) // 2, y - _LINE * (len(text) - 1) - 5)
            back = -8 if start < end else 8
            steps.append(f'<path class="arrow" d="M{start},{y}H{end}l{back},-4v8l{-back},-4"/>')
            y += 10
        elif found := _NOTE.fullmatch(line):
            first, last = places[found[1]], places[found[2] or found[1]]
            left, width = first - _COLUMN // 2 + 8, last - first + _COLUMN - 16
            text = _wrapped(found[3], width - 12)
            height = _LINE * len(text) + 8
            steps.append(f'<rect class="note" x="{left}" y="{y}" width="{width}" height="{height}"/>')
            steps += _text(text, left + width // 2, y + _LINE)
            y += height + 8
        else:
            raise ValueError(f"no line of a sequence diagram: {line!r}")
    width = _COLUMN * len(names)
    heads = [part for key, name in names.items() for part in _text([name], places[key], _LINE + 4)]
    lives = [f'<line class="life" x1="{x}" y1="{2 * _LINE}" x2="{x}" y2="{y}"/>' for x in places.values()]
    return (
        f'<div class="sequence"><svg viewBox="0 0 {width} {y + 4}" width="{width}">'
        f"{''.join([*lives, *heads, *steps])}</svg></div>"
    )


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(int(width / _CHARACTER), 1))


def _text(lines: list[str], x: int, y: int) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f'<text x="{x}" y="{y + _LINE * number}">{escape(line)}</text>'
