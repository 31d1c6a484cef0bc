"""What a table says of its writers, from one commit to the next."""

from __future__ import annotations

import pytest

from commit_coord.catalog.metastore.declarations import LOCK_ENABLED, prepare_properties
from commit_coord.catalog.metastore.hive_table import folder_refused, value_refused
from commit_coord.catalog.metastore.protection import Protection, WriterRelation
from commit_coord.errors import ConfigError
from commit_coord.hms.probe import CompareAndSet
from commit_coord.model import Generation, LockEntry, LockMode, LockScope, LockState, Owner, Resource
from commit_coord.protocol.migration import LOCK_IMPL, Phase, State

TOLD = {LOCK_ENABLED: "false"}


def hms(**more: str) -> dict[str, str]:
    return {LOCK_IMPL: "hms", **more}


def zookeeper(**more: str) -> dict[str, str]:
    return {LOCK_IMPL: "zookeeper", **TOLD, **more}


@pytest.mark.parametrize(
    "impl, before, after, expected",
    [
        pytest.param("hms", {}, {"a": "b"}, hms(a="b"), id="the first commit declares"),
        pytest.param("zookeeper", {}, {}, zookeeper(), id="and tells Java"),
        pytest.param("zookeeper", zookeeper(), zookeeper(a="b"), zookeeper(a="b"), id="later ones change nothing"),
        pytest.param("zookeeper", zookeeper(), {"a": "b"}, zookeeper(a="b"), id="what is removed comes back"),
        pytest.param("zookeeper", zookeeper(), hms(**TOLD), hms(), id="handed to the common lock, Java locks again"),
        pytest.param("hms", hms(**TOLD), hms(**TOLD), hms(**TOLD), id="what somebody else told Java stays"),
        pytest.param("hms", hms(), {LOCK_IMPL: "zookeeper"}, zookeeper(), id="handed to another lock manager"),
        pytest.param("zookeeper", hms(), {LOCK_IMPL: "zookeeper"}, zookeeper(), id="adopted"),
    ],
)
def test_the_declaration_goes_along(
    impl: str, before: dict[str, str], after: dict[str, str], expected: dict[str, str]
) -> None:
    assert prepare_properties(before, after, table="db.t", impl=impl, compares=lambda: True) == expected


def test_java_goes_on_locking_where_the_condition_is_ignored() -> None:
    assert prepare_properties({}, {}, table="db.t", impl="zookeeper", compares=lambda: False) == {
        LOCK_IMPL: "zookeeper"
    }


def test_a_holder_of_the_common_lock_tries_nothing_out() -> None:
    prepare_properties({}, {}, table="db.t", impl="hms", compares=lambda: pytest.fail("tried"))


@pytest.mark.parametrize("before", ["hms", "a-later-one"])
def test_another_lock_manager_is_refused(before: str) -> None:
    declared = {LOCK_IMPL: before}
    with pytest.raises(ConfigError, match=f"another lock manager.*lock-impl.*zookeeper.*{before}"):
        prepare_properties(declared, declared, table="db.t", impl="zookeeper", compares=lambda: True)


GUARD = LockEntry(
    resource=Resource(("db", "t")),
    mode=LockMode.SHARED,
    scope=LockScope.COMMIT,
    state=LockState.ACQUIRED,
    owner=Owner(user="ann", host="h", pid=0, application="guard"),
    request_id="r",
    generation=Generation(1),
    requested_at_ms=0,
    explicit=True,
    guard=True,
)


@pytest.mark.parametrize(
    "properties, honoured, guard, lock_only, java",
    [
        (hms(), True, None, WriterRelation.TAKE_TURNS, WriterRelation.TAKE_TURNS),
        (hms(**TOLD), True, None, WriterRelation.TAKE_TURNS, WriterRelation.COMPARE),
        (hms(**TOLD), False, None, WriterRelation.TAKE_TURNS, WriterRelation.OVERWRITE),
        (zookeeper(), True, GUARD, WriterRelation.KEPT_OUT, WriterRelation.COMPARE),
        (zookeeper(), True, None, WriterRelation.OVERWRITE, WriterRelation.COMPARE),
        ({LOCK_IMPL: "zookeeper"}, False, None, WriterRelation.TAKE_TURNS, WriterRelation.TAKE_TURNS),
        ({LOCK_IMPL: "zookeeper"}, True, GUARD, WriterRelation.KEPT_OUT, WriterRelation.KEPT_OUT),
    ],
)
def test_what_protects_a_table_follows_from_its_properties(
    properties: dict[str, str], honoured: bool, guard: LockEntry | None, lock_only: WriterRelation, java: WriterRelation
) -> None:
    found = Protection(
        table="db.t",
        properties=properties,
        lock_impl=properties[LOCK_IMPL],
        compare_and_set=CompareAndSet.HONOURED if honoured else CompareAndSet.IGNORED,
        guard=guard,
    )
    assert (found.lock_only_writers, found.java_writers) == (lock_only, java)


# What a metastore refuses, in its words.


@pytest.mark.parametrize(
    "refusal",
    [
        "Put request failed : UPDATE TABLE_PARAMS SET PARAM_VALUE = ? WHERE TBL_ID=? AND PARAM_KEY=?",
        'Insert of object failed: INSERT INTO "TABLE_PARAMS" ... value too long for type character varying(4000)',
        'Attempt to store value "…" in column "PARAM_VALUE" that has maximum length of 4000. Please correct your data!',
    ],
)
def test_the_longest_value_is_blamed_when_parameters_can_not_be_stored(refusal: str) -> None:
    assert "'b' of 5000 characters" in str(value_refused({"a": "x" * 4000, "b": "y" * 5000}, refusal))
    assert value_refused({"a": "x" * 4000}, refusal) is None


def test_other_refusals_are_passed_on() -> None:
    assert value_refused({"b": "y" * 5000}, "The table has been modified") is None
    assert folder_refused("file:/t", "The table has been modified") is None


def test_a_table_that_is_handed_over_while_it_moves_is_where_that_leaves_it() -> None:
    """By a catalog of one lock manager alone; phase and declaration never contradict each other."""
    moving = State(phase=Phase.BOTH, epoch=1).changed_to(Phase.ZOOKEEPER)
    handed = prepare_properties(moving, {**moving, LOCK_IMPL: "hms"}, table="t", impl="hms", compares=lambda: True)
    assert (handed[LOCK_IMPL], State.of(handed)) == ("hms", State(phase=Phase.HMS, epoch=3))
    handed = prepare_properties(moving, {**moving, LOCK_IMPL: "lease"}, table="t", impl="lease", compares=lambda: True)
    assert (handed[LOCK_IMPL], State.of(handed)) == ("lease", State(phase=Phase.HMS, epoch=3))
    assert (
        prepare_properties(moving, moving, table="t", impl="zookeeper", compares=lambda: True).items() >= moving.items()
    )
