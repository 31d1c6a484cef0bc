"""The program that a worker of the bench runs; see ``fleet.py``, its other end."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Prepare the task that the first line of input names, then answer every further line."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever libraries print must not look like an answer
    logging.basicConfig(level=logging.ERROR)
    first = json.loads(sys.stdin.readline())
    module, _, name = first["task"].rpartition(".")
    make: Callable[..., Callable[[dict[str, Any]], Any]] = getattr(
        importlib.import_module(f"commit_coord.bench.{module or 'tasks'}"), name
    )
    perform = make(**first["spec"])
    answers.write(b'"ready"\n')
    for line in sys.stdin:
        answers.write(json.dumps(perform(json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
