"""Runs one cell: the writers on a new table, the fault, the proof."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.hms.client import client_of
from commit_coord.hms.locks import LockType
from commit_coord.model import LockMode, Resource
from commit_coord.testing.fleet import holds_within
from tests.proof.faults.crews import Crews
from tests.proof.faults.injuries import Cell, Injury
from tests.proof.faults.judge import Findings, image_of, judge, recovered_s, stalled_s
from tests.proof.faults.rigs import LEASE_S, Rig
from tests.proof.faults.writers import CLIENTS, KINDS, TABLE, Place, one_process, processes

RECOVERY_S = LEASE_S + 5
"""The bar: after the end of a fault, something is acknowledged within one lease and 5 s."""

_START_S = 90.0
_QUIET_S = 1.5
_TAIL_S = 2.0
_RECOVERY_MAX_S = 45.0
"""When nothing is acknowledged for so long after a fault, nothing will be."""
_END_S = 45.0

_TABLE_SCHEMA = Schema(
    NestedField(1, "part", StringType()), NestedField(2, "mark", StringType()), NestedField(3, "value", LongType())
)
_SPEC = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="part"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a cell showed.

    Args:
        configuration: Which.
        fault: Likewise.
        seed: Of its choices.
        seconds: All in all.
        findings: Of the judge.
        stalled_s: The longest time without an acknowledgement.
        recovered_s: The longest time from the end of an injury to an acknowledgement; None: there was none.
        done: What was done to it.
        ended: Writer processes that ended and were replaced.
        load: Of the machine before.
        at: When, ISO 8601.
        broken: The promises that did not hold, in words.
    """

    configuration: str
    fault: str
    seed: int
    seconds: float
    findings: Findings
    stalled_s: float
    recovered_s: float | None
    done: dict[str, int]
    ended: int
    load: float
    at: str
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def run(
    rig: Rig,
    injury: Injury,
    folder: Path,
    *,
    seed: int,
    kinds: tuple[str, ...] | None = None,
    seconds: float | None = None,
) -> Result:
    """Run the cell of *rig* and *injury*.

    Args:
        rig: Its servers run.
        injury: The fault.
        folder: New; the logs go there.
        seed: Of its choices.
        kinds: Of the writers; None for those of the configuration.
        seconds: How long the fault lasts, where that is free.
    """
    began, load, at = time.monotonic(), os.getloadavg()[0], time.strftime("%Y-%m-%dT%H:%M:%S%z")
    folder.mkdir(parents=True)
    shutil.rmtree(rig.warehouse / "t", ignore_errors=True)
    proxies = rig.proxies(seed) if injury.proxied else {}
    kinds = kinds or (CLIENTS if rig.configuration.rest else KINDS) * injury.crowd
    if injury.spark:
        kinds = (*kinds[:-1], "spark")
    name = f"cell_{injury.name.replace('-', '_')}_{seed}"
    direct = Place(folder=folder, catalog=name, properties=rig.properties(proxies), ours=rig.configuration.ours)
    place = replace(direct, properties=rig.client(proxies), ours=False, java=rig.java) if rig.rest else direct
    slots = one_process(kinds) if rig.configuration.threads else processes(kinds)
    try:
        _new_table(direct, rig)
        crews = Crews(place, slots)
        cell = Cell(rig, crews, proxies, seed, injury.seconds if seconds is None else seconds)
        crews.start()
        try:
            holds_within(lambda: all(log.acknowledged for log in crews.outcomes()), _START_S)
            time.sleep(_QUIET_S)  # the subject: undisturbed work before the fault is measured
            since = time.monotonic()
            injury.inflict(cell)
            recovered = holds_within(lambda: recovered_s(crews.outcomes(), cell.ends) is not None, _RECOVERY_MAX_S)
            time.sleep(_TAIL_S if recovered else 0)  # the subject: undisturbed work after the fault is measured
            until = time.monotonic()
        finally:
            crews.stop(_END_S)
            for proxy in proxies.values():
                proxy.heal()
        logs = crews.outcomes()
        patience = {"lock.acquire-timeout-ms": str(int(RECOVERY_S * 1000))}
        with closing(replace(direct, properties={**direct.properties, **patience}).open()) as catalog:
            leaked = _leaked(catalog, rig)
            location = catalog.load_table(TABLE).metadata_location
        findings = judge(logs, image_of(location), leaked)
        recovery = recovered_s(logs, cell.ends)
        broken = list(findings.broken)
        if recovery is None or recovery > RECOVERY_S:
            broken.append(f"went on after {recovery and round(recovery, 1)} s instead of {RECOVERY_S:.0f} s")
        if crews.hung:
            broken.append(f"{crews.hung} writers did not end within {_END_S:.0f} s")
        if any(not log.acknowledged for log in logs):
            broken.append("a writer got nothing acknowledged")
        return Result(
            configuration=rig.configuration.name,
            fault=injury.name,
            seed=seed,
            seconds=round(time.monotonic() - began, 1),
            findings=findings,
            stalled_s=round(stalled_s(logs, since, until), 1),
            recovered_s=None if recovery is None else round(recovery, 1),
            done=cell.done,
            ended=len(crews.ended),
            load=round(load, 1),
            at=at,
            broken=broken,
        )
    finally:
        for proxy in proxies.values():
            proxy.close()


def _new_table(place: Place, rig: Rig) -> None:
    if rig.metastore is not None:  # what the last cell left must not block this one
        with client_of({"uri": rig.metastore.uri}, timeout_ms=120_000) as client:
            for lock in client.show_locks(*TABLE):
                client.unlock(lock.lock_id)
    with closing(place.open()) as catalog:
        catalog.create_namespace_if_not_exists(TABLE[0])
        if catalog.table_exists(TABLE):
            catalog.drop_table(TABLE)
        catalog.create_table(
            TABLE, _TABLE_SCHEMA, location=f"{rig.warehouse.as_uri()}/{place.catalog}", partition_spec=_SPEC
        )
    if rig.configuration.threads:  # else this process would be the one that locks in memory
        CoordinatedSqlCatalog.adopt_locks(place.catalog, **place.properties)


def _leaked(catalog: Catalog, rig: Rig) -> list[str]:
    """Return the locks that exist a lease after one more writer has had its turn; it has within one lease and 5 s."""
    left: list[str] = []
    if isinstance(catalog, CoordinatedCatalog):
        try:
            request = {Resource.table(TABLE): LockMode.EXCLUSIVE}
            with catalog.lock_operation(request, statement="the next writer"), catalog.coordinator.latch(TABLE):
                pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the next writer was not served
            left.append(f"the next writer waited in vain: {error}")
        # What was sent before its sender ended may come now: a release, or a request, which stays for a lease.
        holds_within(lambda: not _standing(catalog, rig), LEASE_S + 1)
    else:
        time.sleep(LEASE_S if rig.metastore is not None else 0)  # the subject: what outlives a lease has leaked
    return [*left, *_standing(catalog, rig)]


def _standing(catalog: Catalog, rig: Rig) -> list[str]:
    standing = [str(entry) for entry in catalog.locks.locks()] if isinstance(catalog, CoordinatedCatalog) else []
    if rig.metastore is not None:
        with client_of({"uri": rig.metastore.uri}, timeout_ms=120_000) as client:
            standing += [
                f"in the metastore: {lock.lock_id}"
                for lock in client.show_locks(*TABLE)
                if lock.part.type is LockType.EXCLUSIVE
            ]
    return standing
