"""What is checked: the protocols as they are, and each without one of its guards.

A variant that must break names the promise that goes with its guard; only that one is checked, so that the trace is the
shortest way to break it. Servers without compare-and-set are modelled where the guard is needed only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Value = bool | int | str

FREE = "the latch is free in the end"
"""Not a formula of the module: a last state with a held latch is a deadlock, which TLC reports by itself."""

LIVE = "FreeInTheEnd"
"""The same as a formula about whole runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A specification.

    Args:
        name: Of the file.
        constants: Of the protocol as it is.
        promises: Formulas that hold in every state.
        steps: Formulas that hold for every step.
        ends: Whether every run ends in ``Finished``.
        alike: Whether the writers may be exchanged for each other.
    """

    name: str
    constants: Mapping[str, Value]
    promises: tuple[str, ...]
    steps: tuple[str, ...] = ()
    ends: bool = True
    alike: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One run of TLC.

    Args:
        name: How it is called.
        title: What is different, in words.
        why: What follows from it, in words.
        module: The specification.
        changes: Constants that differ from the module's.
        breaks: The promise that must be broken; None where all must hold.
        small: Whether it is one of those that take seconds.
        live: Also check ``LIVE``.
    """

    name: str
    title: str
    module: Module
    why: str = ""
    changes: Mapping[str, Value] = field(default_factory=dict)
    breaks: str | None = None
    small: bool = True
    live: bool = False

    @property
    def constants(self) -> dict[str, Value]:
        """All constants of this run, without ``Telling``."""
        return {**self.module.constants, **self.changes}


COMMIT = Module(
    name="Commit",
    constants=MappingProxyType(
        {
            "Writers": "{w1, w2}",
            "MaxFaults": 3,
            "MaxTries": 2,
            "Cas": True,
            "Prompt": False,
            "Locking": True,
            "Groups": True,
            "Expires": True,
            "EnsureActive": True,
            "OwnRelease": True,
            "BaseInLatch": True,
            "OneRead": True,
            "LostIsUnknown": True,
            "BaseIsUnknown": True,
            "MovedIsUnknown": True,
            "LookForOwn": True,
            "Retract": True,
        }
    ),
    promises=("AcknowledgedStays", "NoneTwice", "RefusedNever"),
    steps=("Unbroken",),
)

LEASE = Module(
    name="Lease",
    constants=MappingProxyType({"Lease": 3, "End": 12, "FromSending": True, "ThroughSuspend": True}),
    promises=("BeliefIsTrue",),
    ends=False,
    alike=False,
)

MIGRATION = Module(
    name="Migration",
    constants=MappingProxyType(
        {
            "New": "{n1, n2}",
            "Old": "{o1}",
            "Operators": "{p1}",
            "NoOne": "NoOne",
            "MaxFaults": 1,
            "Starts": '{"hms", "both", "zookeeper"}',
            "SecondLock": True,
            "PhaseCheck": True,
            "GuardStands": True,
            "AckWhileHeld": True,
            "GuardLast": True,
            "StepsBack": True,
            "Conditional": True,
        }
    ),
    promises=("AcknowledgedStays", "EpochGrows"),
    steps=("Unbroken",),
)

REST = Module(
    name="Rest",
    constants=MappingProxyType(
        {
            "Clients": "{c1, c2}",
            "Servers": "{s1, s2}",
            "NoOne": "NoOne",
            "Declared": "{c2}",
            "Silent": "{}",
            "Keyed": "{c2}",
            "Stream": "{}",
            "MaxFaults": 2,
            "IdFirst": True,
            "KeyFirst": True,
            "InLatch": True,
            "LookAgain": True,
            "OnlyDeclared": True,
            "Checkpoints": True,
            "LatchIsNoProof": True,
            "UnknownIsTold": True,
            "ArrivesOnce": True,
            "Turns": True,
            "TurnsEnd": True,
            "TurnsWait": True,
        }
    ),
    promises=("AcknowledgedStays", "NoneTwice", "RefusedNever", "OnWhatWasRead", "OneRetry"),
)

OFFERS = Module(
    name="Offers",
    constants=MappingProxyType(
        {
            "Writers": "{w1, w2}",
            "NoOne": "NoOne",
            "MaxFaults": 3,
            "MaxTries": 2,
            "Cas": True,
            "SecondLook": True,
            "LookForMark": True,
            "DeleteFirst": True,
            "LateIsDoubt": True,
            "OnlyProven": True,
            "ReportsHeld": True,
            "OwnerLeaves": True,
            "LookForOwn": True,
        }
    ),
    promises=("AcknowledgedStays", "NoneTwice", "RefusedNever", "LatchIsKept"),
    steps=("Unbroken",),
)

_NO_CAS: Mapping[str, Value] = MappingProxyType({"Cas": False, "Prompt": True})
"""A server that ignores the condition, at its best: whatever is sent arrives within the lease, or never."""

_ONE_SERVER: Mapping[str, Value] = MappingProxyType(
    {"Clients": "{c1, c2, c3}", "Servers": "{s1}", "Declared": "{}", "Keyed": "{}", "MaxFaults": 0}
)
"""Clients that commit what they have read, at a server where nothing goes wrong."""

VARIANTS = (
    # The protocol as it is.
    Variant(name="commit-2", title="two writers, any three faults", module=COMMIT),
    Variant(
        name="commit-live",
        title="two writers, any two faults: the latch is free in the end, as a formula about whole runs",
        module=COMMIT,
        changes={"MaxFaults": 2},
        live=True,
    ),
    Variant(
        name="commit-3",
        title="three writers, any three faults",
        module=COMMIT,
        changes={"Writers": "{w1, w2, w3}"},
        small=False,
    ),
    Variant(
        name="no-locks",
        title="three writers without any lock (`lock-impl=none`), any three faults",
        why="The lock is not the safety; the swap is.",
        module=COMMIT,
        changes={"Writers": "{w1, w2, w3}", "Locking": False, "Groups": False, "MaxTries": 3},
        small=False,
    ),
    Variant(
        name="no-ensure-active-with-cas",
        title="three writers that never ask whether the lease is still their own, any two faults",
        why="Where the server compares, asking saves work and no data.",
        module=COMMIT,
        changes={"Writers": "{w1, w2, w3}", "MaxFaults": 2, "EnsureActive": False},
        small=False,
    ),
    Variant(
        name="no-cas-prompt",
        title="three writers, any three faults; the server ignores the condition; what is sent is in time or never",
        module=COMMIT,
        changes={**_NO_CAS, "Writers": "{w1, w2, w3}"},
        small=False,
    ),
    # Without one guard.
    Variant(
        name="no-cas",
        title="without compare-and-set",
        why="A holder is paused between its last question and its swap. What it sends then overwrites what was "
        "committed meanwhile. On such a server nothing prevents this.",
        module=COMMIT,
        changes={"Cas": False, "Groups": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="no-ensure-active",
        title="without `ensure_active`, on a server that ignores the condition",
        why="The pause may be anywhere under the latch then, and not only within the last step.",
        module=COMMIT,
        changes={**_NO_CAS, "Groups": False, "EnsureActive": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="foreign-release",
        title="without release by the owner only, on a server that ignores the condition",
        why="A writer whose lease ran out frees the latch of its present holder, and a third one is granted it, too.",
        module=COMMIT,
        changes={**_NO_CAS, "Writers": "{w1, w2, w3}", "Groups": False, "OwnRelease": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="base-before-latch",
        title="without reading the table under the latch, on a server that ignores the condition",
        why="What was read before the wait is old when the latch is granted. No fault is needed.",
        module=COMMIT,
        changes={**_NO_CAS, "MaxFaults": 0, "Groups": False, "BaseInLatch": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="two-reads",
        title="comparing with another read than the one that was built on",
        why="The table is read before the latch, the pointer to compare with under it. Even a server that compares "
        "finds nothing wrong, and no fault is needed.",
        module=COMMIT,
        changes={"MaxFaults": 0, "Groups": False, "BaseInLatch": False, "OneRead": False},
        breaks="Unbroken",
    ),
    Variant(
        name="lost-is-refused",
        title="taking a lost answer for a failure",
        why="The files of an append that is in the table are deleted.",
        module=COMMIT,
        changes={"Groups": False, "LostIsUnknown": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="base-is-refused",
        title="taking the old head for a failure, after a lost answer",
        why="The swap was still under way.",
        module=COMMIT,
        changes={"Groups": False, "BaseIsUnknown": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="moved-is-refused",
        title='taking "the table has been modified" for a conflict, after a lost answer',
        why="It was modified by the writer's own first try.",
        module=COMMIT,
        changes={"Groups": False, "MovedIsUnknown": False, "MaxTries": 1},
        breaks="RefusedNever",
    ),
    Variant(
        name="no-look-for-own",
        title="without looking for one's own append in the table",
        why="A holder carried it along, and was paused or died before it could say so.",
        module=COMMIT,
        changes={"LookForOwn": False},
        breaks="NoneTwice",
    ),
    Variant(
        name="no-retract",
        title="saying FAILURE while another writer has the offer",
        why="The holder that took it swaps later, and the table names files that are gone.",
        module=COMMIT,
        changes={"Retract": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="no-expiry",
        title="without an end of leases",
        why="A holder dies, and everybody waits for ever.",
        module=COMMIT,
        changes={"Groups": False, "Expires": False},
        breaks=FREE,
    ),
    # Offers on the metastore's locks.
    Variant(name="offers", title="two writers, any three faults", module=OFFERS),
    Variant(
        name="offers-3",
        title="three writers, any two faults",
        module=OFFERS,
        changes={"Writers": "{w1, w2, w3}", "MaxFaults": 2},
        small=False,
    ),
    Variant(
        name="offers-no-cas",
        title="taking offers where the server does not compare",
        why="The holder is paused, and swaps after the owner of the offer has. So no offers are made on such a server.",
        module=OFFERS,
        changes={"Cas": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="offers-one-look",
        title="without a second look for the offer, after the mark",
        why="Its owner has deleted the offer and found no mark. It says FAILURE, and the holder publishes the append.",
        module=OFFERS,
        changes={"SecondLook": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="offers-no-look-for-a-mark",
        title="without looking for a mark, after the offer was deleted",
        why="A holder had taken it before.",
        module=OFFERS,
        changes={"LookForMark": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="offers-looked-for-too-early",
        title="looking for a mark before the offer is deleted",
        why="A holder takes it between the two.",
        module=OFFERS,
        changes={"DeleteFirst": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="offers-that-come-late",
        title="taking back an offer whose writing was not confirmed",
        why="The store writes it after its owner has deleted it and found no mark.",
        module=OFFERS,
        changes={"LateIsDoubt": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="offers-returned-unproven",
        title="returning an offer although the swap may still land",
        why="Its owner believes that no holder has its append.",
        module=OFFERS,
        changes={"OnlyProven": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="offers-returned-late",
        title="returning an offer after the lease has run out",
        why="Another holder has found it without a mark, and taken it, too.",
        module=OFFERS,
        changes={"Writers": "{w1, w2, w3}", "MaxFaults": 2, "MaxTries": 1, "ReportsHeld": False},
        breaks="RefusedNever",
        small=False,
    ),
    Variant(
        name="offers-ended-by-the-holder",
        title="with a holder that takes the requests that it published out of the queue",
        why="It was paused for longer than its lease: an owner that it ends has the latch by now.",
        module=OFFERS,
        changes={"OwnerLeaves": False, "ReportsHeld": False},
        breaks="LatchIsKept",
    ),
    Variant(
        name="offers-no-look-for-own",
        title="without looking for one's own append in the table",
        why="The holder died before it could write the outcome.",
        module=OFFERS,
        changes={"LookForOwn": False},
        breaks="NoneTwice",
    ),
    # What a holder may believe.
    Variant(name="lease", title="renewals that take their time, a machine that is suspended", module=LEASE),
    Variant(
        name="lease-from-answer",
        title="counting the lease from the answer",
        why="The service counts from when the renewal arrived, which is earlier.",
        module=LEASE,
        changes={"FromSending": False},
        breaks="BeliefIsTrue",
    ),
    Variant(
        name="lease-clock-stops",
        title="counting with a clock that stops while the machine is suspended",
        why="The holder wakes up and finds its lease young.",
        module=LEASE,
        changes={"ThroughSuspend": False},
        breaks="BeliefIsTrue",
    ),
    # From HMS to ZooKeeper.
    Variant(
        name="migration",
        title="two writers that migrate, an old one, an operator; any phase, any earlier knowledge of it, one fault",
        module=MIGRATION,
    ),
    Variant(
        name="migration-2-operators",
        title="the same with two operators",
        module=MIGRATION,
        changes={"Operators": "{p1, p2}"},
        small=False,
    ),
    Variant(
        name="migration-no-guard",
        title="going on to `zookeeper` while an old writer lives, without the guard",
        why="The old writer's alter carries no condition, and nothing in HMS holds it up.",
        module=MIGRATION,
        changes={"Starts": '{"both"}', "MaxFaults": 0, "GuardStands": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="migration-one-lock",
        title="without the HMS lock in phase `both`",
        why="An old writer then excludes no other writer.",
        module=MIGRATION,
        changes={"Starts": '{"both"}', "MaxFaults": 0, "SecondLock": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="migration-no-phase-check",
        title="without reading the phase under the locks",
        why="A writer that believes in `zookeeper` holds no HMS lock on a table that went back.",
        module=MIGRATION,
        changes={"Starts": '{"hms"}', "MaxFaults": 0, "PhaseCheck": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="migration-unconditional",
        title="a change of phase that does not compare",
        why="An operator is paused past its leases and puts back an old phase, over commits and another change.",
        module=MIGRATION,
        changes={"Old": "{}", "Operators": "{p1, p2}", "Conditional": False},
        breaks="Unbroken",
    ),
    Variant(
        name="migration-guard-first",
        title="removing the guard before the phase goes back",
        why="Next to an old writer, a writer that was paused past its lease still finds the pointer unchanged.",
        module=MIGRATION,
        changes={"Starts": '{"zookeeper"}', "GuardLast": False},
        breaks="AcknowledgedStays",
    ),
    Variant(
        name="migration-waits",
        title="waiting for the second lock without looking at the phase",
        why="One writer holds HMS's lock and waits for ZooKeeper's; the other one holds ZooKeeper's, and its guard "
        "waits for HMS's.",
        module=MIGRATION,
        changes={"MaxFaults": 0, "Old": "{}", "StepsBack": False},
        breaks=FREE,
    ),
    Variant(
        name="migration-paused",
        title="acknowledging without a look at the HMS lock, where an old writer also writes",
        why="The writer of `commit_coord` was paused past its lease. It compares and sets, the old writer does not. In "
        "phase `zookeeper` this can not happen: the guard is no lease.",
        module=MIGRATION,
        changes={"Starts": '{"hms"}', "Operators": "{}", "AckWhileHeld": False},
        breaks="AcknowledgedStays",
    ),
    # Clients of the REST server.
    Variant(
        name="rest-2",
        title="two servers, an append without a key, a blind append with a key, any two faults",
        module=REST,
    ),
    Variant(
        name="rest-live",
        title="the same with any one fault: every client is served in the end, as a formula about whole runs",
        module=REST,
        changes={"MaxFaults": 1},
        live=True,
    ),
    Variant(
        name="rest-keys",
        title="an append and a change without a snapshot, both with a key, any two faults",
        module=REST,
        changes={"Declared": "{}", "Silent": "{c1}", "Keyed": "{c1, c2}"},
    ),
    Variant(
        name="rest-turns",
        title="four appends that are not declared blind, one server, no fault: each is tried twice at most",
        module=REST,
        changes={**_ONE_SERVER, "Clients": "{c1, c2, c3, c4}"},
    ),
    Variant(
        name="rest-streams",
        title="two instances of a stream, the second with a key, another append, any one fault",
        module=REST,
        changes={"Clients": "{c1, c2, c3}", "Stream": "{c1, c2}", "Declared": "{c1, c2}", "MaxFaults": 1},
        small=False,
    ),
    Variant(
        name="rest-3",
        title="two appends without a key, a blind append with a key, any one fault",
        module=REST,
        changes={"Clients": "{c1, c2, c3}", "MaxFaults": 1},
        small=False,
    ),
    Variant(
        name="rest-no-id",
        title="without looking for the snapshot of a commit in the table",
        why="The network doubles a blind append, and it follows itself.",
        module=REST,
        changes={"Declared": "{c1, c2}", "Keyed": "{}", "IdFirst": False},
        breaks="NoneTwice",
    ),
    Variant(
        name="rest-no-key",
        title="without looking for the `Idempotency-Key` of a commit in the table's history",
        why="A commit without a snapshot leaves no other trace. Its reply is lost, and it is sent again.",
        module=REST,
        changes={"Declared": "{}", "Silent": "{c2}", "KeyFirst": False},
        breaks="NoneTwice",
    ),
    Variant(
        name="rest-look-too-early",
        title="looking for an earlier try only before the latch",
        why="Both tries look, and neither finds the other one.",
        module=REST,
        changes={"InLatch": False},
        breaks="NoneTwice",
    ),
    Variant(
        name="rest-no-last-look",
        title="refusing a commit without a last look for it",
        why="The head was moved by its own first try, at another server.",
        module=REST,
        changes={"Keyed": "{c1, c2}", "LookAgain": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="rest-every-append-follows",
        title="having appends follow a head that moved, although they are not declared blind",
        why="A `MERGE` that only inserts is an append too. It has read the table, and inserts a key that is there.",
        module=REST,
        changes={"OnlyDeclared": False},
        breaks="OnWhatWasRead",
    ),
    Variant(
        name="rest-no-checkpoints",
        title="without comparing the checkpoint of a stream with those in the table",
        why="An instance that was replaced commits late what the new one has committed.",
        module=REST,
        changes={"Declared": "{c1, c2}", "Keyed": "{}", "Stream": "{c1, c2}", "Checkpoints": False},
        breaks="NoneTwice",
    ),
    Variant(
        name="rest-latch-is-proof",
        title="answering 409 to a commit with a key that was not granted the latch",
        why="Its first try is at another server, and lands.",
        module=REST,
        changes={"MaxFaults": 3, "LatchIsNoProof": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="rest-doubled",
        title="with a network that sends a commit without a key twice",
        why="The server does not know that there are two, and answers 409 to the one that was not granted the latch. "
        "Nothing prevents this; the keys are there for it.",
        module=REST,
        changes={"MaxFaults": 3, "ArrivesOnce": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="rest-unknown-is-refused",
        title="answering 409 to a commit whose outcome is unknown",
        why="Its client deletes the files, and the swap lands.",
        module=REST,
        changes={"UnknownIsTold": False},
        breaks="RefusedNever",
    ),
    Variant(
        name="rest-no-turns",
        title="without a turn for a client that was refused",
        why="It reads the table again, and the head has moved again when it comes back.",
        module=REST,
        changes={**_ONE_SERVER, "Turns": False},
        breaks="OneRetry",
    ),
    Variant(
        name="rest-turn-at-once",
        title="giving the turn while other commits run",
        why="One of them moves the head that the client reads.",
        module=REST,
        changes={**_ONE_SERVER, "TurnsWait": False},
        breaks="OneRetry",
    ),
    Variant(
        name="rest-turn-without-end",
        title="without an end of the turn",
        why="The client does not come back, and the table is kept free for it.",
        module=REST,
        changes={"MaxFaults": 1, "TurnsEnd": False},
        breaks=FREE,
    ),
)
