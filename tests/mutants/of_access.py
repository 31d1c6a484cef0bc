"""Mutants of the REST server's access: who is believed, and what is allowed to whom."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ORACLE = "tests/rest/test_access.py::test_no_request_comes_in_that_its_sender_may_not_send_and_every_other_one_does"
_METASTORE = "tests/rest/test_access.py::test_no_spelling_leads_past_a_grant_on_a_metastore"
_REPEATS = "tests/rest/test_access.py::test_"
_WHO = "tests/rest/test_identities.py::"
_PAGE = "tests/rest/test_access.py::test_no_page_and_no_route_shows_anything_of_a_table_that_its_reader_may_not_read"
_BEGINNING = "tests/ui/test_pages.py::test_the_beginning_of_an_id_has_the_fate_of_no_other_request"
_READERS = "tests/ui/test_watching.py::test_the_forms_of_a_reader_keep_no_operator_from_releasing_locks"
_LINES = "tests/observing/test_observing.py::test_an_event_is_one_line_of_printable_letters_in_every_log"
_COUNTED = "tests/rest/test_watching.py::test_each_refused_commit_is_counted_and_the_page_knows_its_request"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "access-new-tables-name-classes",
        "rest/tables.py",
        "    refuse_classes(warehouse, wanted.properties)\n",
        "",
        "tests/rest/test_classes.py::test_no_request_gives_a_table_a_class_to_import[py-io-impl]",
    ),
    Mutant(
        "access-writers-import-what-tables-name",
        "table/data_files.py",
        "    metadata = heeded(metadata, io.properties)\n",
        "",
        "tests/catalog/test_storage.py::test_no_call_of_the_library_runs_what_a_table_names[flat]",
    ),
    Mutant(
        "access-shortest-prefix-decides",
        "rest/access.py",
        "range(len(place), -1, -1)",
        "range(len(place) + 1)",
        _ORACLE,
    ),
    Mutant(
        "access-purge-is-a-drop",
        "rest/needs.py",
        "self.purging is not None and request.purges",
        "self.purging is None",
        _ORACLE,
    ),
    Mutant(
        "access-rename-looks-at-its-source",
        "rest/routes.py",
        "return wanted.source.namespace, wanted.destination.namespace",
        "return (wanted.source.namespace,)",
        _ORACLE,
    ),
    Mutant(
        "access-names-as-the-client-writes-them",
        "rest/gate.py",
        'levels = tuple(_AROUND.sub("", level) for level in spelled.split("."))',
        "levels = namespace",
        _METASTORE,
    ),
    Mutant(
        "access-refusals-are-not-audited",
        "rest/routes.py",
        "            self.gate.audit(request, caller, error)\n",
        "",
        _ORACLE,
    ),
    Mutant(
        "access-any-address-is-the-proxy",
        "rest/identities.py",
        "if not proxy.has(request.peer):",
        "if not request.peer:",
        _ORACLE,
    ),
    Mutant(
        "access-a-wrong-token-is-no-token",
        "rest/identities.py",
        "            return self._bearer(token.strip())\n",
        "            try:\n                return self._bearer(token.strip())\n            except NotAuthenticated:\n"
        "                pass\n",
        _ORACLE,
    ),
    Mutant(
        "access-lists-show-everything",
        "rest/namespaces.py",
        "filter(request.sees, warehouse.catalog.list_namespaces(parent))",
        "warehouse.catalog.list_namespaces(parent)",
        "tests/rest/test_access.py::test_lists_leave_out_what_a_client_may_not_know_of",
    ),
    Mutant(
        "access-nobody-is-asked-who-it-is",
        "rest/routes.py",
        "caller = ANYBODY if route.needs is NOTHING else self.gate.caller(request)",
        "caller = ANYBODY",
        _REPEATS + "a_repeat_is_answered_to_a_client_that_may_send_it_alone",
    ),
    Mutant(
        "access-heads-are-not-checked",
        "rest/routes.py",
        "self.gate.check(needs, request, admitted.caller, self._chosen(admitted))",
        "self._chosen(admitted)",
        _ORACLE,
    ),
    Mutant(
        "access-keys-go-before-grants",
        "rest/routes.py",
        "if not admitted.is_checked_by_head:\n                self.gate.check(admitted",
        "if not admitted.is_checked_by_head and not request.idempotency_key:\n                self.gate.check(admitted",
        _REPEATS + "a_repeat_is_answered_to_a_client_that_may_send_it_alone",
    ),
    Mutant(
        "access-a-key-serves-all-clients",
        "rest/wire.py",
        "uuid.uuid5(key, self.client) if self.client else key",
        "key",
        _REPEATS + "a_key_belongs_to_the_client_that_sent_it",
    ),
    Mutant(
        "access-any-audience",
        "rest/tokens.py",
        'aud={"essential": True, "value": settings.audience}',
        'aud={"essential": True}',
        _ORACLE,
    ),
    Mutant(
        "access-a-token-outlives-its-secret",
        "rest/identities.py",
        "if digest is None or digest[: len(given_for)] != given_for:",
        "if digest is None:",
        f"{_WHO}test_a_token_ends_with_the_secret_for_which_it_was_given",
    ),
    Mutant(
        "access-any-host",
        "rest/gate.py",
        "if self._identities is None and not _is_loopback(host):",
        "if self._identities is None and not host:",
        f"{_WHO}test_no_web_page_reaches_a_server_without_authentication",
    ),
    Mutant(
        "access-any-origin",
        "rest/gate.py",
        'origin.partition("://")[2] != host',
        "not origin",
        f"{_WHO}test_no_web_page_reaches_a_server_without_authentication",
    ),
    Mutant(
        "access-the-last-of-two-grants-decides",
        "rest/clients.py",
        "        if (other := named.setdefault(granted, where)) != where:",
        "        if (other := where) != where:",
        _WHO + "test_two_grants_for_one_namespace_are_refused_whichever_is_wider[hive-sales-Sales-none]",
    ),
    Mutant(
        "page-a-joined-name-means-one-table",
        "ui/requests.py",
        "for depth in range(1, len(levels)))",
        "for depth in range(len(levels) - 1, len(levels)))",
        f"{_PAGE}[a.b]",
    ),
    Mutant(
        "page-who-reads-one-table-reads-of-all",
        "ui/recent.py",
        "        ended = [one for one in ended if reads(one.tables)]\n",
        "",
        "tests/ui/test_pages.py::test_a_commit_to_several_tables_is_shown_to_who_may_read_all_of_them[False]",
    ),
    Mutant(
        "page-an-own-id-is-always-a-beginning",
        "ui/pages.py",
        "chosen = request_uuid(text) if is_beginning(text) else None",
        "chosen = None if is_beginning(text) else request_uuid(text)",
        "tests/ui/test_pages.py::test_an_id_of_ones_own_that_looks_like_a_beginning_is_found",
    ),
    Mutant(
        "page-one-that-begins-so-is-meant",
        "ui/requests.py",
        "if len(found) > 1 or search.failed or not search.complete:",
        "if len(found) > 1:",
        f"{_BEGINNING}[-with failures]",
    ),
    Mutant(
        "page-one-table-is-all",
        "ui/requests.py",
        "search = _Search(complete=table is None and place.reads_all)",
        "search = _Search(complete=place.reads_all)",
        f"{_BEGINNING}[db.orders-all]",
    ),
    Mutant(
        "page-readers-take-the-turn-of-operators",
        "ui/pages.py",
        "                return place.administers()\n",
        "                return True\n",
        f"{_READERS}[reap-with a proof]",
    ),
    Mutant(
        "page-readers-take-the-threads-of-operators",
        "ui/pages.py",
        "return self._may_change and visit.visitor.frees(place.catalog.name)",
        "return self._may_change",
        f"{_READERS}[free-with a proof]",
    ),
    Mutant(
        "page-streams-are-counted-late",
        "rest/browsing.py",
        "        if not self._may_watch(visit.visitor):\n            return\n",
        "",
        "tests/ui/test_watching.py::test_many_who_begin_to_watch_at_once_are_no_more_than_may",
    ),
    Mutant(
        "page-one-sender-takes-all-streams",
        "rest/browsing.py",
        "return of_one < _MOST_OF_ONE and ",
        "return ",
        "tests/ui/test_watching.py::test_one_sender_takes_not_all_streams",
    ),
    Mutant(
        "access-refusals-are-counted-when-they-are-recorded",
        "rest/gate.py",
        "        warehouse.catalog.events.emit(event)\n",
        "",
        "tests/rest/test_strangers.py::test_an_audit_log_that_is_stuck_stops_neither_refusals_nor_probes",
    ),
    Mutant(
        "access-a-name-is-a-line-of-the-log",
        "observing/audit.py",
        'logger.warning("%s", printable(message)',
        'logger.warning("%s", message',
        f"{_LINES}[AccessRefused-'\\\\nunlock by root@vm'-the message]",
    ),
    Mutant(
        "access-a-name-is-a-line-of-the-access-log",
        "rest/watching.py",
        "printable(json.dumps(line, ensure_ascii=False))",
        "json.dumps(line, ensure_ascii=False)",
        "tests/rest/test_watching.py::test_a_line_of_the_access_log_has_printable_letters_alone[%E2%80%A8]",
    ),
    Mutant(
        "rest-a-refused-commit-is-no-failed-one",
        "catalog/requested.py",
        "                self._coordinator.emit_ended([self._asked.table], self._asked.request_id, error)\n",
        "                pass\n",
        f"{_COUNTED}[requires a schema id-commit-without a key]",
    ),
    Mutant(
        "rest-a-refused-transaction-is-no-failed-commit",
        "catalog/requested.py",
        "                coordinator.emit_ended([part.before.table for part in self._parts], request_id, error)\n",
        "                pass\n",
        f"{_COUNTED}[requires a schema id-transaction-without a key]",
    ),
    Mutant(
        "cli-one-of-several-that-begin-so",
        "cli/commits.py",
        "    if len(ids) > 1:\n",
        "    if len(ids) > 99:\n",
        "tests/cli/test_cli.py::test_the_beginning_of_several_request_ids_is_the_id_of_none",
    ),
)
