"""The example's lock manager with a journal in etcd. Like the example, it imports the public contract alone."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace

from commit_coord.locks import public as locks
from examples.etcd_locks import Etcd, EtcdLockManager, EtcdQueue


@dataclass
class EtcdJournal(locks.Journal):
    """One key for each entry. etcd deletes it some time after the end of its lifetime."""

    etcd: Etcd
    space: str
    retries: locks.Retries
    clock: locks.Clock

    def remember(self, entry: locks.JournalEntry, *, lifetime_ms: int) -> None:
        value = {**entry.stored, "expires_at_ms": self.clock.wall_ms() + lifetime_ms}
        put = {"key": self._key(entry.key), "value": b64encode(json.dumps(value).encode()).decode()}

        def send() -> None:
            granted = self.etcd.call("lease/grant", {"TTL": str(math.ceil(lifetime_ms / 1000))})
            self.etcd.call("kv/put", {**put, "lease": granted["ID"]})

        self.retries.briefly(send)

    def recall(self, key: str) -> locks.JournalEntry | None:
        answer = self.retries.briefly(lambda: self.etcd.call("kv/range", {"key": self._key(key)}))
        values = [json.loads(b64decode(one["value"])) for one in answer.get("kvs", ())]
        live = [value for value in values if value["expires_at_ms"] > self.clock.wall_ms()]
        return locks.JournalEntry.parse(live[0]) if live else None

    def _key(self, key: str) -> str:
        return b64encode(f"commit-coord/{self.space}/journal/{key}".encode()).decode()


class EtcdJournalLockManager(EtcdLockManager):
    """Locks and a journal in etcd."""

    guarantees = replace(EtcdLockManager.guarantees, journal=True)

    @property
    def parts(self) -> locks.Parts[EtcdQueue]:
        """The parts of the example, and the journal."""
        parts = super().parts
        if parts.journal is None:
            requests = parts.queue.requests
            parts.journal = EtcdJournal(requests.etcd, requests.space, requests.retries, parts.queue.clock)
        return parts
