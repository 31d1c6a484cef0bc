"""Mutants of the REST server's access: who is believed, and what is allowed to whom."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ORACLE = "tests/rest/test_access.py::test_no_request_comes_in_that_its_sender_may_not_send_and_every_other_one_does"
_METASTORE = "tests/rest/test_access.py::test_no_spelling_leads_past_a_grant_on_a_metastore"
_REPEATS = "tests/rest/test_access.py::test_"
_WHO = "tests/rest/test_identities.py::"

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
)
