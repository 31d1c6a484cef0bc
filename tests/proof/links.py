"""Asks the servers whether the links of the documents to other sites lead somewhere: ``python -m tests.proof.links``.

Links between the documents are no business of it: a test checks those, and so does the strict build of the manual. A
link is dead if its server answers 404 or 410, or none answers in time. Some servers refuse programs with other codes,
which says nothing about the page; these are printed, and fail nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]

_DEAD = (404, 410)
_TIMEOUT_S = 20.0


def links(root: Path = ROOT) -> Mapping[str, Sequence[str]]:
    """Return the addresses on other hosts that the documents link, and the documents of each."""
    found = defaultdict[str, list[str]](list)
    for document in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        text = re.sub(r"^```[\s\S]*?^```$|`[^`\n]*`", "", document.read_text(), flags=re.MULTILINE)
        for parts in re.findall(
            r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>|^\[.+\]: (https?://\S+)", text, re.MULTILINE
        ):
            address = "".join(parts).partition("#")[0]
            if not re.match(r"https?://(localhost|127\.0\.0\.1)\b", address):
                found[address].append(document.relative_to(root).as_posix())
    return found


def answered(address: str, timeout_s: float = _TIMEOUT_S) -> int | str:
    """Return the code with which *address* answers, or why there is no answer."""
    said: int | str = 0
    for method in ("HEAD", "GET"):  # not all servers know HEAD
        asked = Request(address, method=method, headers={"User-Agent": "Mozilla/5.0 (a check of links)"})  # noqa: S310
        try:
            with urlopen(asked, timeout=timeout_s) as answer:  # noqa: S310  # the addresses begin with http
                return int(answer.status)
        except HTTPError as error:
            said = error.code
        except OSError as error:
            said = str(error)
    return said


def main(argv: Sequence[str] | None = None) -> int:
    """Print the links that are dead; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.proof.links")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT_S, help="seconds for an answer (default: %(default)s)"
    )
    timeout_s = parser.parse_args(argv).timeout
    found, dead = links(), 0
    with ThreadPoolExecutor(8) as pool:
        for address, said in zip(found, pool.map(lambda each: answered(each, timeout_s), found), strict=True):
            if said in range(200, 400):
                continue
            is_dead = said in _DEAD or isinstance(said, str)
            dead += is_dead
            print(f"{'dead' if is_dead else 'refused'}: {address} ({said}) in {', '.join(found[address])}")
    print(f"{len(found)} links to other sites, {dead} dead")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
