"""Every SQL statement of the ``lease`` lock manager, named and described; the same text for SQLite and PostgreSQL.

Parameters are written ``:name``. What the two databases spell differently is in braces and is filled in by the
store: ``{now}`` is the service's clock in milliseconds, ``{wall}`` its wall clock, ``{epoch}`` the wall clock minus the
service's clock, ``{ids}`` the strings of the JSON list ``:ids``, ``{notify}`` the expression that wakes the client of
request ``r``, ``{text}`` the type of a text that is ordered by its bytes, ``{for update}`` the clause that locks the
rows of a query.

The tables
    ``commit_coord_places``    one row per queue: the last place that was given.
    ``commit_coord_requests``  one row per request: its place, its owner, until when it is kept.
    ``commit_coord_locks``     one row per request and resource. Its primary key answers both questions that an acquire
                               asks, each by one step into the index: the nearest X before a place, the nearest S.
    ``commit_coord_offers``    one row per request with an offer: the offer, and the place of the holder that took it.
    ``commit_coord_journal``   one row per remembered commit. The outcome of a published offer is a row under the id of
                               the lock request.
    ``commit_coord_leases``    one row per Hive lease: its objects, when it began, and its request. Only the row of the
                               request shows whether the lease is live.
    ``commit_coord_notes``     one row per commit latch: the note of its last holder for the next one.

    The column ``scope`` is ``<space>:operation`` or ``<space>:commit``; locks with different values never conflict.
    A *queue* is where places come from: the whole operation scope is one, since a request there touches many
    resources; in the commit scope each table is one, ``<space>:commit:<db/table>``, so that latches of different
    tables do not wait for each other. A request in several queues takes the same place in all of them, behind
    everyone in each.

Granted is not a column
    A request is granted when no conflicting one with a smaller place exists. Nobody has to record a grant, and there is
    no second record that could disagree. An expired request still counts: it has to be deleted first (``REMOVE``), and
    that deletion is the one moment at which the locks change hands:

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
        request_id {text} PRIMARY KEY,
        place BIGINT NOT NULL,
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
        expires_at BIGINT
    )""",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_locks (
        scope {text} NOT NULL,
        resource {text} NOT NULL,
        mode {text} NOT NULL,
        place BIGINT NOT NULL,
        request_id {text} NOT NULL,
        PRIMARY KEY (scope, resource, mode, place)
    )""",
    "CREATE INDEX IF NOT EXISTS commit_coord_locks_of_request ON commit_coord_locks (request_id)",
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
    """
    CREATE TABLE IF NOT EXISTS commit_coord_offers (
        request_id {text} PRIMARY KEY,
        place BIGINT NOT NULL,
        offer {text} NOT NULL,
        taken BIGINT
    )""",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_leases (
        scope {text} NOT NULL,
        lease_id BIGINT NOT NULL,
        request_id {text} NOT NULL,
        objects {text} NOT NULL,
        started_at_ms BIGINT NOT NULL,
        latest BIGINT NOT NULL,
        PRIMARY KEY (scope, lease_id)
    )""",
    """
    CREATE TABLE IF NOT EXISTS commit_coord_notes (
        queue {text} PRIMARY KEY,
        note {text} NOT NULL
    )""",
)
"""Tables and indexes, created if they are missing. The last one exists only if all do."""

CREATED = "commit_coord_notes"

# A request has expired when its time is over, or when its time counts by the clock of an earlier boot of this host:
# all processes of that boot have ended. A request without an end time, a granted LOCK statement's, stays until UNLOCK.
_EXPIRED = "(r.expires_at IS NOT NULL AND (r.clock <> :clock OR r.expires_at <= {now}))"

# The remaining lease time. SQLite's clock is read before the statement begins, so after a heartbeat in between the
# remainder could exceed the lease time; it is limited to that.
_LEFT = f"""CASE WHEN {_EXPIRED} THEN 0 WHEN r.expires_at > {{now}} + r.lease_ms THEN r.lease_ms
        ELSE r.expires_at - {{now}} END"""


def _nearest(request: str) -> str:
    """Return SQL for the id of the nearest conflicting request before a request; *request* is the alias of its row."""
    return f"""(
    SELECT nearest.request_id FROM (
        SELECT o.request_id AS request_id, o.place AS place
        FROM commit_coord_locks l
        JOIN commit_coord_locks o ON o.scope = l.scope AND o.resource = l.resource AND o.mode = 'X' AND o.place = (
            SELECT max(x.place) FROM commit_coord_locks x
            WHERE x.scope = l.scope AND x.resource = l.resource AND x.mode = 'X' AND x.place < l.place)
        WHERE l.request_id = {request}.request_id
        UNION ALL
        SELECT o.request_id, o.place
        FROM commit_coord_locks l
        JOIN commit_coord_locks o ON o.scope = l.scope AND o.resource = l.resource AND o.mode = 'S' AND o.place = (
            SELECT max(s.place) FROM commit_coord_locks s
            WHERE s.scope = l.scope AND s.resource = l.resource AND s.mode = 'S' AND s.place < l.place)
        WHERE l.request_id = {request}.request_id AND l.mode = 'X'
    ) AS nearest ORDER BY nearest.place DESC LIMIT 1)"""


# Take the next place of a queue, and with it the database's lock on the queue's row in commit_coord_places (the counter
# row) until the end of the transaction. This row lock is what makes the queue one queue on PostgreSQL, where
# transactions run side by side under READ COMMITTED:
# 1. A takes place 7 from, say, a sequence, and has not committed.
# 2. B takes place 8, looks, sees nobody before it, and commits.
# 3. A looks, sees nobody before 7, and commits: both hold.
# With the row lock B gets its place only after A committed, and its later statements see A. A request for several
# queues locks them in the order of their names, so that no two requests wait for each other's rows.
# A new boot skips a million places: without an fsync for each lock, the last ones given before a power failure may be
# forgotten. A place is also the generation of the lease, and no generation may be given twice.
TAKE_PLACE = """
    INSERT INTO commit_coord_places (queue, place, clock) VALUES (:queue, 1, :clock)
    ON CONFLICT (queue) DO UPDATE SET
        place = commit_coord_places.place
            + CASE WHEN commit_coord_places.clock = excluded.clock THEN 1 ELSE 1048576 END,
        clock = excluded.clock"""

# Set the places just taken in several queues to the largest of them.
LEVEL_PLACES = """
    UPDATE commit_coord_places SET place = (SELECT max(p.place) FROM commit_coord_places p WHERE p.queue IN {ids})
    WHERE queue IN {ids}"""

# Put the request at the place that was taken in this transaction.
ENTER_REQUEST = """
    INSERT INTO commit_coord_requests (
        request_id, place, scope, client, wake, owner_user, owner_host, owner_pid, owner_application,
        owner_statement, owner_process, explicit, requested_at_ms, lease_ms, clock, expires_at)
    SELECT :request_id, place, :scope, :client, :wake, :owner_user, :owner_host, :owner_pid, :owner_application,
        :owner_statement, :owner_process, :explicit, {wall}, :lease_ms, :clock, {now} + :lease_ms
    FROM commit_coord_places WHERE queue = :queue"""

# Insert one lock of the request.
ENTER_LOCK = """
    INSERT INTO commit_coord_locks (scope, resource, mode, place, request_id)
    SELECT :scope, :resource, :mode, place, :request_id FROM commit_coord_places WHERE queue = :queue"""

# Insert the offer of the request.
ENTER_OFFER = """
    INSERT INTO commit_coord_offers (request_id, place, offer)
    SELECT :request_id, place, :offer FROM commit_coord_places WHERE queue = :queue"""

# The place of my request, its blocker, and the note of the last holder. No row: the request was removed. Blocker
# columns null: granted. One statement reads all of it. With two, a waiter whose request was removed in between would
# find no blocker, and believe that it holds the lock.
LOOK = f"""
    SELECT own.place, own.client, r.request_id, r.place, r.owner_user, r.owner_host, r.owner_pid, r.owner_application,
        r.owner_statement, r.owner_process, r.requested_at_ms,
        {_LEFT},
        (SELECT n.note FROM commit_coord_notes n WHERE n.queue = :queue)
    FROM commit_coord_requests own
    LEFT JOIN commit_coord_requests r ON r.request_id = {_nearest("own")}
    WHERE own.request_id = :request_id"""

# Take the end time from a granted LOCK statement. Not before the grant: nobody knows of the lock if its process is
# killed while it waits.
KEEP = """
    UPDATE commit_coord_requests SET expires_at = NULL WHERE request_id = :request_id AND place = :place
    RETURNING request_id"""

# Extend requests by their lease time; those that are not returned are gone. A request that has expired but was not
# removed yet is extended, too: until a client deletes it, no other request is granted. One that never expires stays so:
# it may be granted between the moment in which the heartbeat chooses it and this statement.
RENEW = """
    UPDATE commit_coord_requests SET expires_at = CASE WHEN expires_at IS NULL THEN NULL ELSE {now} + lease_ms END
    WHERE request_id IN (
        SELECT r.request_id FROM commit_coord_requests r WHERE r.request_id IN {ids} ORDER BY r.request_id {for update})
      AND (expires_at IS NULL OR clock = :clock)
    RETURNING request_id"""

# All blockers of these requests; no row for a request that is granted.
BLOCKERS_OF = """
    SELECT DISTINCT l.request_id, l.resource, l.mode, b.request_id, b.place, substr(b.wake, 1, 45)
    FROM commit_coord_locks l
    JOIN commit_coord_locks o ON o.scope = l.scope AND o.resource = l.resource AND o.place < l.place
        AND (o.mode = 'X' OR l.mode = 'X')
    JOIN commit_coord_requests b ON b.request_id = o.request_id
    WHERE l.request_id IN {ids}"""

# The requests of these threads, by any client. The wake-up addresses of a thread begin with its name (Store.address).
REQUESTS_OF = """
    SELECT request_id, place, substr(wake, 1, 45), owner_user, owner_host, owner_pid, owner_application,
        owner_statement, owner_process
    FROM commit_coord_requests WHERE substr(wake, 1, 45) IN {ids}"""

# The places of these requests.
PLACES_OF = "SELECT request_id, place FROM commit_coord_requests WHERE request_id IN {ids}"

# The place of a request of this client.
FIND = "SELECT place FROM commit_coord_requests WHERE request_id = :request_id AND client = :client"

# The locks of a request.
LOCKS_OF = "SELECT resource, mode FROM commit_coord_locks WHERE request_id = :request_id AND place = :place"

# Delete a request: in any state if :forced; else only if it has expired, or belongs to the process :ended. See "Granted
# is not a column". The place is a condition, too, because a denied request enters again under its own id. So is the
# process:
# 1. B looks: A's request will expire, and names A's process.   2. A's request becomes a LOCK statement's, or a Hive
# lease, which outlive their process.   3. A's process ends, as it should.   4. B deletes what A's process left.
REMOVE = f"""
    DELETE FROM commit_coord_requests AS r
    WHERE r.request_id = :request_id AND r.place = :place
      AND (:forced = 1 OR (r.owner_process = :ended AND r.expires_at IS NOT NULL) OR {_EXPIRED})
    RETURNING request_id"""

# Leave a note for the next holder of a latch, or delete the note; only if the request of this holder still exists.
_STANDS = """EXISTS (
        SELECT 1 FROM commit_coord_requests r WHERE r.request_id = :request_id AND r.place = :place)"""
LEAVE_NOTE = f"""
    INSERT INTO commit_coord_notes (queue, note)
    SELECT q.queue, :note FROM commit_coord_places q WHERE q.queue = :queue AND {_STANDS}
    ON CONFLICT (queue) DO UPDATE SET note = excluded.note"""
DELETE_NOTE = f"DELETE FROM commit_coord_notes WHERE queue = :queue AND {_STANDS}"

# Delete the locks of a request that is gone, and its offer.
_GONE = """
    WHERE request_id = :request_id AND place = :place AND NOT EXISTS (
        SELECT 1 FROM commit_coord_requests r WHERE r.request_id = :request_id AND r.place = :place)"""
REMOVE_LOCKS = f"DELETE FROM commit_coord_locks {_GONE}"
REMOVE_OFFER = f"DELETE FROM commit_coord_offers {_GONE}"

# Take the offers behind a holder of one lock, up to the first request that offers nothing or whose offer was taken by
# an earlier holder, which may still publish it. A holder whose request was removed takes none. From here on the owner
# can't retract: TAKE and RETRACT change the same row, so the second one sees the first. `taken IS NULL` is also a
# condition on the updated row itself: after waiting for a row, PostgreSQL evaluates the conditions on that row again,
# but keeps its old view of all other rows.
TAKE = """
    UPDATE commit_coord_offers SET taken = :place
    WHERE taken IS NULL AND request_id IN (
        SELECT l.request_id FROM commit_coord_locks l
        JOIN commit_coord_offers o ON o.request_id = l.request_id
        WHERE l.scope = :scope AND l.resource = :resource AND l.mode = 'X' AND l.place > :place
          AND l.place < COALESCE((
            SELECT min(n.place) FROM commit_coord_locks n
            WHERE n.scope = :scope AND n.resource = :resource AND n.place > :place
              AND NOT EXISTS (
                SELECT 1 FROM commit_coord_offers p WHERE p.request_id = n.request_id AND p.taken IS NULL)),
            9223372036854775807)
        ORDER BY l.place LIMIT :limit)
      AND EXISTS (SELECT 1 FROM commit_coord_requests r WHERE r.request_id = :request_id AND r.place = :place)
    RETURNING place, request_id, offer"""

# Retract an offer that no holder has taken or published. The journal is asked, too: if the server executes the entering
# transaction twice, a request comes back, with its offer, after the offer was published.
RETRACT = """
    DELETE FROM commit_coord_offers WHERE request_id = :request_id AND taken IS NULL
      AND NOT EXISTS (SELECT 1 FROM commit_coord_journal j WHERE j.request_id = :request_id)
    RETURNING request_id"""

# Return offers that were taken at :place and not published. A release is repeated if its reply was lost; by then the
# next holder may have taken the offers, hence the condition on `taken`.
RETURN_OFFERS = "UPDATE commit_coord_offers SET taken = NULL WHERE request_id IN {ids} AND taken = :place"

# Wake the owners of these requests.
WAKE_OWNERS = "SELECT {notify} FROM commit_coord_requests r WHERE r.request_id IN {ids}"

# Lock the rows of requests in the order in which a heartbeat locks them: two transactions that lock the same rows in
# different orders may wait for each other.
LOCK_REQUESTS = """
    SELECT r.request_id FROM commit_coord_requests r WHERE r.request_id IN {ids} ORDER BY r.request_id {for update}"""

# End requests whose offers were published, if the request of the holder that took them still exists; else one of these
# requests may hold the lock now.
# 1. A takes the offers of B and C, publishes them, and stalls.   2. A's request expires; B is granted.
# 3. A continues, and releases. If that ended B's request, another request would be granted while B holds the lock.
# So B keeps its lock, and finds its append in the table.
_HOLDER = "EXISTS (SELECT 1 FROM commit_coord_requests h WHERE h.request_id = :request_id AND h.place = :place)"
END_REQUESTS = f"DELETE FROM commit_coord_requests WHERE request_id IN {{ids}} AND {_HOLDER}"
END_LOCKS = f"DELETE FROM commit_coord_locks WHERE request_id IN {{ids}} AND {_HOLDER}"
END_OFFERS = f"DELETE FROM commit_coord_offers WHERE request_id IN {{ids}} AND {_HOLDER}"

# Wake only those whose nearest blocker on :resource was the lock in :mode at :place: the first X behind it if no S
# is between them, and behind an X every S up to the next X. Runs in a transaction of its own, after the removal was
# committed. In one transaction with the removal, this could happen:
# 1. B enters behind A and, in its transaction, sees A.   2. A is removed; the removal does not see B yet, which has not
#    committed, and wakes nobody.   3. B commits, waits, and is not woken.
# With two transactions, and because B looks once more between entering and waiting, this can't happen: either B looks
# after the removal was committed, or WAKE sees B.
WAKE = """
    SELECT {notify} FROM commit_coord_locks x
    JOIN commit_coord_requests r ON r.request_id = x.request_id
    WHERE x.scope = :scope AND x.resource = :resource AND x.mode = 'X'
      AND x.place = (
        SELECT min(n.place) FROM commit_coord_locks n
        WHERE n.scope = :scope AND n.resource = :resource AND n.mode = 'X' AND n.place > :place)
      AND NOT EXISTS (
        SELECT 1 FROM commit_coord_locks s
        WHERE s.scope = :scope AND s.resource = :resource AND s.mode = 'S' AND s.place > :place AND s.place < x.place)
    UNION ALL
    SELECT {notify} FROM commit_coord_locks s
    JOIN commit_coord_requests r ON r.request_id = s.request_id
    WHERE :mode = 'X' AND s.scope = :scope AND s.resource = :resource AND s.mode = 'S' AND s.place > :place
      AND s.place < COALESCE((
        SELECT min(n.place) FROM commit_coord_locks n
        WHERE n.scope = :scope AND n.resource = :resource AND n.mode = 'X' AND n.place > :place),
        9223372036854775807)"""


# Locks of some scopes, each with its request and the request that blocks it. The blocker is computed once for each
# request and not for each of its locks, which may be thousands: hence MATERIALIZED.
def _listed(chosen: str, order: str) -> str:
    return f"""
    WITH listed AS MATERIALIZED (
        SELECT l.resource, l.mode, l.place, l.request_id FROM commit_coord_locks l
        WHERE (:resource = '' OR l.resource = :resource OR (l.resource >= :below_from AND l.resource < :below_to))
          AND {chosen}),
    present AS MATERIALIZED (
        SELECT r.*, {_LEFT} AS left_ms, {_nearest("r")} AS blocked_by
        FROM commit_coord_requests r WHERE r.request_id IN (SELECT request_id FROM listed))
    SELECT l.resource, l.mode, l.place, r.request_id, r.scope, r.owner_user, r.owner_host, r.owner_pid,
        r.owner_application, r.owner_statement, r.owner_process, r.explicit, r.requested_at_ms, r.left_ms, r.blocked_by
    FROM listed l
    JOIN present r ON r.request_id = l.request_id
    ORDER BY {order}"""


# All of them, oldest request first.
LIST = _listed("l.scope IN {ids}", "r.requested_at_ms, r.place, l.resource")

# The next ones of one scope, resource by resource, along the primary key.
LIST_NEXT = _listed(
    """l.scope = :scope AND (l.resource, l.mode, l.place) > (:after_resource, :after_mode, :after_place)
        ORDER BY l.resource, l.mode, l.place LIMIT :limit""",
    "l.resource, l.mode, l.place",
)

# Requests that have expired and that nobody has removed, because nobody waits for them.
EXPIRED = f"""
    SELECT r.scope, r.request_id, r.place FROM commit_coord_requests r
    WHERE r.scope IN {{ids}} AND {_EXPIRED} LIMIT :limit"""

# Remember a commit. An entry with the same id is replaced and gets a new lifetime.
REMEMBER = """
    INSERT INTO commit_coord_journal (
        request_id, table_name, table_uuid, metadata_location, snapshot_ids, expires_at_ms)
    VALUES (:request_id, :table_name, :table_uuid, :metadata_location, :snapshot_ids, {wall} + :lifetime_ms)
    ON CONFLICT (request_id) DO UPDATE SET
        table_name = excluded.table_name, table_uuid = excluded.table_uuid,
        metadata_location = excluded.metadata_location, snapshot_ids = excluded.snapshot_ids,
        expires_at_ms = excluded.expires_at_ms"""

# Forget commits whose time is over.
FORGET = "DELETE FROM commit_coord_journal WHERE expires_at_ms <= {wall}"

# The outcome of a commit.
RECALL = """
    SELECT request_id, table_name, table_uuid, metadata_location, snapshot_ids
    FROM commit_coord_journal WHERE request_id = :request_id AND expires_at_ms > {wall}"""

# Leases (``hive_lease``). A lease is live while its request is there and has not expired.

_REQUEST = "r.request_id = l.request_id AND r.place = l.lease_id"
_NAMED = "l.scope = :scope AND l.lease_id = :lease_id"

# Turn a granted request into a Hive lease: set its length. If the lease outlives its process (:outlives), clear the
# process and the thread: the lease ends by its clock, so it can't be part of a deadlock. Repeated after a lost reply,
# it changes only the end time.
LENGTHEN = """
    UPDATE commit_coord_requests SET
        lease_ms = :lease_ms,
        expires_at = {now} + :lease_ms,
        owner_process = CASE WHEN :outlives = 1 THEN '' ELSE owner_process END,
        wake = CASE WHEN :outlives = 1 THEN 'nobody' ELSE wake END
    WHERE request_id = :request_id AND place = :place
    RETURNING request_id"""
NAME_LEASE = """
    INSERT INTO commit_coord_leases (scope, lease_id, request_id, objects, started_at_ms, latest)
    SELECT r.scope, r.place, r.request_id, :objects, {wall}, {now} + :max_ms
    FROM commit_coord_requests r WHERE r.request_id = :request_id AND r.place = :place
    ON CONFLICT (scope, lease_id) DO NOTHING"""

# Forget the leases whose requests are gone, for any reason.
FORGET_LEASES = f"""
    DELETE FROM commit_coord_leases AS l WHERE NOT EXISTS (SELECT 1 FROM commit_coord_requests r WHERE {_REQUEST})"""

# All live leases, or only the one with :lease_id if that is not 0.
LEASES = f"""
    SELECT l.lease_id, l.request_id, l.objects, l.started_at_ms, r.owner_user, r.expires_at + {{epoch}}
    FROM commit_coord_leases l JOIN commit_coord_requests r ON {_REQUEST}
    WHERE l.scope = :scope AND (:lease_id = 0 OR l.lease_id = :lease_id) AND NOT {_EXPIRED}
    ORDER BY l.lease_id"""

# The leases that have ended, and whose requests nobody has deleted.
ENDED_LEASES = f"""
    SELECT l.lease_id, l.request_id
    FROM commit_coord_leases l JOIN commit_coord_requests r ON {_REQUEST}
    WHERE l.scope = :scope AND {_EXPIRED}"""

# Extend a live lease by its length from now, unless it would end later than it may.
EXTEND = f"""
    UPDATE commit_coord_requests AS r SET expires_at = {{now}} + r.lease_ms
    WHERE r.request_id = (
        SELECT l.request_id FROM commit_coord_leases l WHERE {_NAMED} AND l.latest >= {{now}} + r.lease_ms)
      AND r.place = :lease_id AND NOT {_EXPIRED}
    RETURNING expires_at + {{epoch}}"""

# Return a row if a lease is live, and keep the row of its request until this transaction ends: a row that this
# transaction has updated can't be deleted before. So even if the lease expires meanwhile, nobody else gets its locks.
HOLD = f"""
    UPDATE commit_coord_requests AS r SET lease_ms = r.lease_ms
    WHERE r.request_id = (SELECT l.request_id FROM commit_coord_leases l WHERE {_NAMED})
      AND r.place = :lease_id AND NOT {_EXPIRED}
    RETURNING request_id"""

# Remove objects from a lease, if its objects are still the ones that were read (or, after a lost reply, are reduced
# already). Then delete the locks that no remaining object needs, and insert S where a deleted X is still needed as S.
REDUCE = f"""
    UPDATE commit_coord_leases AS l SET objects = :after
    WHERE {_NAMED} AND l.objects IN (:before, :after)
    RETURNING lease_id"""
_REDUCED = f"EXISTS (SELECT 1 FROM commit_coord_leases l WHERE {_NAMED} AND l.objects = :after)"
REDUCE_LOCKS = f"""
    DELETE FROM commit_coord_locks
    WHERE scope = :scope AND request_id = :request_id AND place = :lease_id AND mode || resource IN {{ids}}
      AND {_REDUCED}"""
SHARE_LOCK = f"""
    INSERT INTO commit_coord_locks (scope, resource, mode, place, request_id)
    SELECT r.scope, :resource, 'S', r.place, r.request_id FROM commit_coord_requests r
    WHERE r.request_id = :request_id AND r.place = :lease_id AND {_REDUCED}
    ON CONFLICT DO NOTHING"""
