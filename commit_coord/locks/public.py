"""The public contract: all that a lock manager of another package is written against.

``docs/write-a-lock-manager.md`` walks through a manager that imports nothing else of :mod:`commit_coord.locks`.
"""

from __future__ import annotations

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockRefused, LockServiceUnavailable, OfferLost
from commit_coord.events import Events
from commit_coord.locks.acquiring import ANSWER_LEASES, Acquire, Acquirer, Carried, Deadlocks, Queue, RemovedByForce
from commit_coord.locks.base import DenyPolicy, Interrupted, LockSettings, Policy, WaitPolicy
from commit_coord.locks.blockers import Blocker, Holder, entries_of, holder_of
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import (
    CarryingLease,
    HeartbeatLease,
    Keeper,
    LeaseService,
    Offers,
    Retries,
    Ticket,
    Tickets,
)
from commit_coord.locks.queue_manager import Journal, LockTable, Parts, QueueLockManager
from commit_coord.locks.threads import THREADS, Threads
from commit_coord.model import (
    ExpiryClock,
    Generation,
    Guarantees,
    JournalEntry,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    Offer,
    Owner,
    Reach,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host, raise_of_signal_handler
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.modes import compatible

__all__ = [
    "ANSWER_LEASES",
    "SYSTEM_CLOCK",
    "SYSTEM_HOST",
    "THREADS",
    "Acquire",
    "Acquirer",
    "Blocker",
    "Carried",
    "CarryingLease",
    "Clock",
    "Deadlocks",
    "DenyPolicy",
    "Events",
    "ExpiryClock",
    "Generation",
    "Guarantees",
    "HandoverLease",
    "HandoverLockManager",
    "HeartbeatLease",
    "Held",
    "Holder",
    "Host",
    "Interrupted",
    "Journal",
    "JournalEntry",
    "Keeper",
    "LeaseService",
    "LockEntry",
    "LockEventEmitter",
    "LockMode",
    "LockRefused",
    "LockRequest",
    "LockScope",
    "LockServiceUnavailable",
    "LockSettings",
    "LockTable",
    "Obstacle",
    "Offer",
    "OfferLost",
    "Offers",
    "Owner",
    "Parts",
    "Policy",
    "Queue",
    "QueueLockManager",
    "Reach",
    "RemovedByForce",
    "Resource",
    "Retries",
    "Threads",
    "Ticket",
    "Tickets",
    "Wait",
    "WaitPolicy",
    "compatible",
    "entries_of",
    "holder_of",
    "raise_of_signal_handler",
]
