"""Every SQL statement of the ``lease`` lock manager, named and described; the same text for SQLite and PostgreSQL.

Parameters are written ``:name``. What the two databases spell differently stands in braces and is filled in by the
store: ``{now}`` is the service's clock in milliseconds, ``{wall}`` its wall clock, ``{ids}`` the strings of the JSON
list ``:ids``, ``{notify}`` what wakes the client of request ``r``, ``{text}`` the type of a text that is ordered by its
bytes.

The tables
    ``commit_coord_places``    one row a queue: the last place that was given.
    ``commit_coord_requests``  one row a request: its place, its owner, until when it is kept.
    ``commit_coord_locks``     one row a request and resource. Its primary key answers both questions that an acquire
                               asks, each by one step into the index: the nearest X before a place, the nearest S.
    ``commit_coord_journal``   one row a commit that is remembered.

    A *queue* is ``<space>:operation`` for the whole hierarchy, since one request may touch many resources and has one
    place in all their queues, and ``<space>:commit:<db/table>`` for the latch of one table, so that latches of
    different tables do not wait for each other's counter.

Granted is not a column
    A request is granted when no conflicting one with a smaller place exists. Nobody has to be told to hold, and nothing
    can contradict. An expired request still counts: it has to be deleted first (``REMOVE``), and that
    deletion is the one moment at which the locks change hands:

    1. A holds and stalls; its lease runs out by the service's clock.
    2. B deletes A's row, on the condition that it is still expired, and is granted.
    3. A wakes up. Its heartbeat updates no row: LOST. Had the heartbeat come first, B's deletion would have found
       the row alive and removed nothing.
"""

from __future__ import annotations

CREATE = (
    """
    CREATE TABLE IF NOT EXISTS commit_coord_places (
        queue {text} PRIMARY KEY,
        place BIGINT NOT NULL,
        clock {text} NOT NULL
    )""",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_requests (
        queue {text} NOT NULL,
        place BIGINT NOT NULL,
        request_id {text} NOT NULL UNIQUE,
        scope {text} NOT NULL,
        client {text} NOT NULL,
        wake {text} NOT NULL,
        owner_user {text} NOT NULL,
        owner_host {text} NOT NULL,
        owner_pid BIGINT NOT NULL,
        owner_application {text} NOT NULL,
        owner_statement {text} NOT NULL,
        owner_process {text} NOT NULL,
        explicit INTEGER NOT NULL,
        requested_at_ms BIGINT NOT NULL,
        lease_ms BIGINT NOT NULL,
        clock {text} NOT NULL,
        expires_at BIGINT,
        PRIMARY KEY (queue, place)
    )""",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_locks (
        queue {text} NOT NULL,
        resource {text} NOT NULL,
        mode {text} NOT NULL,
        place BIGINT NOT NULL,
        PRIMARY KEY (queue, resource, mode, place)
    )""",
    "CREATE INDEX IF NOT EXISTS commit_coord_locks_of_request ON commit_coord_locks (queue, place)",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_journal (
        request_id {text} PRIMARY KEY,
        table_name {text} NOT NULL,
        table_uuid {text} NOT NULL,
        metadata_location {text} NOT NULL,
        snapshot_ids {text} NOT NULL,
        expires_at_ms BIGINT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS commit_coord_journal_expiry ON commit_coord_journal (expires_at_ms)",
)
"""What is made where it is missing. The last one tells whether all are there."""

# A request has expired when its time is over, or when it counted by the clock of an earlier boot of this host: all
# its processes ended with that boot. One without expiry stays until UNLOCK.
_EXPIRED = "(r.expires_at IS NOT NULL AND (r.clock <> :clock OR r.expires_at <= {now}))"


def _nearest(request: str) -> str:
    """Return the expression for the nearest place before *request*, a table alias, that conflicts with its locks."""
    return f"""(
    SELECT max(nearest.place) FROM (
        SELECT (SELECT max(x.place) FROM commit_coord_locks x
                WHERE x.queue = lock.queue AND x.resource = lock.resource AND x.mode = 'X' AND x.place < lock.place
               ) AS place
        FROM commit_coord_locks lock WHERE lock.queue = {request}.queue AND lock.place = {request}.place
        UNION ALL
        SELECT (SELECT max(s.place) FROM commit_coord_locks s
                WHERE s.queue = lock.queue AND s.resource = lock.resource AND s.mode = 'S' AND s.place < lock.place
               ) AS place
        FROM commit_coord_locks lock
        WHERE lock.queue = {request}.queue AND lock.place = {request}.place AND lock.mode = 'X'
    ) AS nearest)"""


# Take the next place of a queue, and with it the counter row's lock until the end of the transaction. This lock is
# what makes the queue one queue on PostgreSQL, where transactions run side by side under READ COMMITTED:
# 1. A takes place 7 from, say, a sequence, and has not committed.   2. B takes 8, looks, sees nobody before it, commits.
# 3. A commits, looks, sees nobody before 7: both hold.
# With the row lock B gets its place only after A committed, and its later statements see A.
# A new boot skips a million places: without an fsync for each lock, the last ones given before a power
# failure may be forgotten, and generations must never be given twice.
TAKE_PLACE = """
    INSERT INTO commit_coord_places (queue, place, clock) VALUES (:queue, 1, :clock)
    ON CONFLICT (queue) DO UPDATE SET
        place = commit_coord_places.place
            + CASE WHEN commit_coord_places.clock = excluded.clock THEN 1 ELSE 1048576 END,
        clock = excluded.clock"""

# Put the request at the place that was taken in this transaction.
ENTER_REQUEST = """
    INSERT INTO commit_coord_requests (
        queue, place, request_id, scope, client, wake, owner_user, owner_host, owner_pid, owner_application,
        owner_statement, owner_process, explicit, requested_at_ms, lease_ms, clock, expires_at)
    SELECT queue, place, :request_id, :scope, :client, :wake, :owner_user, :owner_host, :owner_pid, :owner_application,
        :owner_statement, :owner_process, :explicit, {wall}, :lease_ms, :clock,
        CASE WHEN :explicit = 1 THEN NULL ELSE {now} + :lease_ms END
    FROM commit_coord_places WHERE queue = :queue"""

# Put one lock of the request beside it.
ENTER_LOCK = """
    INSERT INTO commit_coord_locks (queue, resource, mode, place)
    SELECT queue, :resource, :mode, place FROM commit_coord_places WHERE queue = :queue"""

# Where does my request stand, and who is in its way? No row: it was removed. Blocker columns null: granted. Asking both
# at once matters: a waiter that slept past its own lease would find nobody before its place and believe it holds.
LOOK = f"""
    SELECT mine.place, mine.client, r.place, r.request_id, r.owner_user, r.owner_host, r.owner_pid, r.owner_application,
        r.owner_statement, r.owner_process, r.requested_at_ms, r.explicit,
        CASE WHEN {_EXPIRED} THEN 0 ELSE r.expires_at - {{now}} END
    FROM commit_coord_requests mine
    LEFT JOIN commit_coord_requests r
        ON r.queue = mine.queue AND r.place = {_nearest("mine")}
    WHERE mine.request_id = :request_id"""

# Keep requests for another lease; those that are not returned are gone. What expired and was not removed yet is kept
# too: until somebody deletes it, nobody else was granted.
RENEW = """
    UPDATE commit_coord_requests SET expires_at = {now} + lease_ms
    WHERE request_id IN {ids} AND expires_at IS NOT NULL AND clock = :clock
    RETURNING request_id"""

# Which of these requests are there?
STANDING = "SELECT request_id FROM commit_coord_requests WHERE request_id IN {ids}"

# Where is a request, and what does it lock?
FIND = """
    SELECT r.queue, r.place, l.resource, l.mode FROM commit_coord_requests r
    JOIN commit_coord_locks l ON l.queue = r.queue AND l.place = r.place
    WHERE r.request_id = :request_id AND r.client = :client"""

# Delete a request: whatever it is when :forced, else only if it has expired. See "Granted is not a column".
REMOVE = f"""
    DELETE FROM commit_coord_requests AS r
    WHERE r.queue = :queue AND r.place = :place AND (:forced = 1 OR {_EXPIRED})
    RETURNING r.request_id"""

# Delete the locks of a request that is gone.
REMOVE_LOCKS = """
    DELETE FROM commit_coord_locks WHERE queue = :queue AND place = :place AND NOT EXISTS (
        SELECT 1 FROM commit_coord_requests r WHERE r.queue = :queue AND r.place = :place)"""

# Wake those whose nearest blocker on :resource was the lock in :mode at :place, and nobody else: the first X behind
# it if no S stands between, and behind an X every S up to the next X. Runs after the commit of the removal,
# with a snapshot of its own:
# 1. B enters behind A and, in its transaction, sees A.   2. A is removed; the removal does not see B yet, which has not
#    committed, and wakes nobody.   3. B commits and waits for ever.
# Removing and waking in two transactions, and asking once more between entering and waiting, leaves no such order:
# either B asks after the removal was committed, or the wake-up sees B.
WAKE = """
    SELECT {notify} FROM commit_coord_requests r
    WHERE r.queue = :queue
      AND r.place = (
        SELECT min(x.place) FROM commit_coord_locks x
        WHERE x.queue = :queue AND x.resource = :resource AND x.mode = 'X' AND x.place > :place)
      AND NOT EXISTS (
        SELECT 1 FROM commit_coord_locks s
        WHERE s.queue = :queue AND s.resource = :resource AND s.mode = 'S' AND s.place > :place AND s.place < r.place)
    UNION ALL
    SELECT {notify} FROM commit_coord_locks s
    JOIN commit_coord_requests r ON r.queue = s.queue AND r.place = s.place
    WHERE :mode = 'X' AND s.queue = :queue AND s.resource = :resource AND s.mode = 'S' AND s.place > :place
      AND s.place < COALESCE((
        SELECT min(x.place) FROM commit_coord_locks x
        WHERE x.queue = :queue AND x.resource = :resource AND x.mode = 'X' AND x.place > :place),
        9223372036854775807)"""

# All locks of a space, oldest request first, each with the request that blocks it.
LIST = f"""
    SELECT l.resource, l.mode, r.queue, r.place, r.request_id, r.scope, r.owner_user, r.owner_host, r.owner_pid,
        r.owner_application, r.owner_statement, r.owner_process, r.explicit, r.requested_at_ms,
        CASE WHEN {_EXPIRED} THEN 0 ELSE r.expires_at - {{now}} END,
        (SELECT b.request_id FROM commit_coord_requests b WHERE b.queue = r.queue AND b.place = {_nearest("r")})
    FROM commit_coord_requests r
    JOIN commit_coord_locks l ON l.queue = r.queue AND l.place = r.place
    WHERE r.queue >= :queue_from AND r.queue < :queue_to
      AND (:resource = '' OR l.resource = :resource OR (l.resource >= :below_from AND l.resource < :below_to))
    ORDER BY r.requested_at_ms, r.queue, r.place, l.resource"""

# Remember a commit; the same id again keeps the first answer and lives longer.
REMEMBER = """
    INSERT INTO commit_coord_journal (
        request_id, table_name, table_uuid, metadata_location, snapshot_ids, expires_at_ms)
    VALUES (:request_id, :table_name, :table_uuid, :metadata_location, :snapshot_ids, {wall} + :lifetime_ms)
    ON CONFLICT (request_id) DO UPDATE SET expires_at_ms = excluded.expires_at_ms"""

# Forget commits whose time is over.
FORGET = "DELETE FROM commit_coord_journal WHERE expires_at_ms <= {wall}"

# What became of a commit?
RECALL = """
    SELECT request_id, table_name, table_uuid, metadata_location, snapshot_ids
    FROM commit_coord_journal WHERE request_id = :request_id AND expires_at_ms > {wall}"""
