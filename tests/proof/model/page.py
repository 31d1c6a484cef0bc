"""The page about the models: what holds, and the shortest way to break each variant as a picture."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from tests.proof.model.tlc import SPECIFICATIONS, Result, Step
from tests.proof.model.variants import COMMIT, FREE, LEASE, LIVE, MIGRATION, OFFERS, REST, VARIANTS, Module

PROMISES = {
    "AcknowledgedStays": "an acknowledged append is in the table",
    "NoneTwice": "no append is in the table twice",
    "RefusedNever": "a refused append is not in the table, and never will be",
    "Unbroken": "the parent of each head is the head before it (in the migration: of each head of `commit_coord`)",
    FREE: "a run ends with every writer answered or dead, nobody in the latch's queue, and no table kept free",
    "BeliefIsTrue": "a client that believes in its lease has it",
    "LatchIsKept": "nobody but its owner takes a request out of the queue, unless its lease has run out",
    "EpochGrows": "the epoch grows by one with each change of phase, and with nothing else",
    "OnWhatWasRead": "a commit through REST that is not declared blind lands on the head that its client has read",
    "OneRetry": "one REST server in front of a table refuses a client once at most, if nothing goes wrong",
}

HEADINGS = {
    COMMIT.name: "The commit protocol",
    OFFERS.name: "Offers on the metastore's locks",
    LEASE.name: "What a holder may believe",
    MIGRATION.name: "From HMS locks to ZooKeeper",
    REST.name: "Clients of the REST server",
}

_BROKEN = {
    "AcknowledgedStays": "An acknowledged commit is not in the table",
    "NoneTwice": "One append is in the table twice",
    "RefusedNever": "What was refused is in the table",
    "Unbroken": "The new head was not built on the head before it",
    FREE: "Nobody can go on",
    "BeliefIsTrue": "The holder believes in a lease that another owner has",
    "LatchIsKept": "A writer works under the latch, and its request is gone",
    "OnWhatWasRead": "A commit follows a head that its client has not read",
    "OneRetry": "A client was refused twice",
}

_SERVICES = {
    "locks": "lock service",
    "table": "table",
    "store": "file store",
    "hms": "HMS locks",
    "zookeeper": "ZooKeeper",
    "holder": "holder",
    "other": "another writer",
}

HEAD = """\
# The protocols as models

Written by `make model`; do not edit. It checks every order of events within the bounds that are named, and each
protocol without one of its guards, which must break: the pictures show the shortest way. What is promised to users
is in [guarantees](guarantees.md).

The specifications are [`Commit.tla`](../tests/proof/model/Commit.tla), to be read together with
`commit_coord/protocol/commit.py`, [`Offers.tla`](../tests/proof/model/Offers.tla), to be read together with
`commit_coord/locks/hms/offers.py`, [`Lease.tla`](../tests/proof/model/Lease.tla),
[`Migration.tla`](../tests/proof/model/Migration.tla), to be read together with
`commit_coord/locks/migration/`, and [`Rest.tla`](../tests/proof/model/Rest.tla), to be read together with
`commit_coord/catalog/requested.py`, `commit_coord/catalog/sent_before.py`, `commit_coord/protocol/turns.py` and
`commit_coord/rest/idempotency.py`.

A *fault* is a death, a lease of a living writer that runs out (it is paused), a lost answer, a deadline, a failed
write. Any step of anybody may come between two steps of a writer, and a request whose sender gave up may be carried out
at any later time.

What is not modelled: more writers and faults than named, operation locks, the contents of metadata, damaged files,
servers that lose what they confirmed, clocks of different speed, and writers of other products except in the migration.
"""


def digest() -> str:
    """Return the fingerprint of the models that the page shows."""
    sources = [*sorted(SPECIFICATIONS.glob("*.tla")), SPECIFICATIONS / "variants.py"]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def page(results: Sequence[Result]) -> str:
    """Return the page, from the results of all variants."""
    parts = [HEAD, "## Promises\n", "| name | in words |", "|---|---|"]
    parts += [f"| {name} | {words} |" for name, words in PROMISES.items() if name != FREE]
    parts += [f"| {LIVE} | {PROMISES[FREE]} |", ""]
    for module in (COMMIT, OFFERS, LEASE, MIGRATION, REST):
        parts += _section(module, [result for result in results if result.variant.module is module])
    parts += [f"<!-- made from {digest()} -->", ""]
    return "\n".join(parts)


def _section(module: Module, results: Sequence[Result]) -> Iterator[str]:
    yield f"## {HEADINGS[module.name]}\n"
    yield "All promises hold:\n"
    yield "| variant | what | states |"
    yield "|---|---|---:|"
    for result in results:
        if result.variant.breaks is None:
            why = f" {result.variant.why}" if result.variant.why else ""
            yield f"| `{result.variant.name}` | {result.variant.title}.{why} | {result.states:,} |"
    yield ""
    for result in results:
        if result.variant.breaks is not None:
            yield from _broken(result)


def _broken(result: Result) -> Iterator[str]:
    variant = result.variant
    assert result.broken is not None
    yield f"### {variant.title[0].upper()}{variant.title[1:]}\n"
    yield f"{variant.why} (`{variant.name}`, {len(result.steps)} steps)\n"
    yield "```mermaid"
    yield "sequenceDiagram"
    names = _columns(result.steps)
    for number, name in enumerate(names):
        yield f"    participant c{number} as {_SERVICES.get(name, name)}"
    for number, step in enumerate(result.steps, 1):
        sender, receiver = names.index(step.sender), names.index(step.receiver)
        if sender == receiver:
            yield f"    Note over c{sender}: {number}. {step.text}"
        else:
            yield f"    c{sender}->>c{receiver}: {number}. {step.text}"
    over = f"c0,c{len(names) - 1}" if len(names) > 1 else "c0"
    yield f"    Note over {over}: {_BROKEN[result.broken]}"
    yield "```\n"


def _columns(steps: Sequence[Step]) -> list[str]:
    """Return who takes part: writers first, then services, each in the order of their first step."""
    seen = list(dict.fromkeys(name for step in steps for name in (step.sender, step.receiver)))
    return [*(name for name in seen if name not in _SERVICES), *(name for name in _SERVICES if name in seen)]


def is_whole(results: Sequence[Result]) -> bool:
    """Return whether *results* are those of all variants, so that a page can be made of them."""
    return [result.variant for result in results] == list(VARIANTS)
