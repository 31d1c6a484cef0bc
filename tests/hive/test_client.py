"""The metastore client: which calls it makes, what it does without an answer, and with several servers."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from thrift.transport.TTransport import TSaslClientTransport

from commit_coord.errors import ConfigError, LockServiceUnavailable, MetastoreUnavailable
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient, client_of
from commit_coord.hms.connection import LostReply, MetaError, MetastoreAccess, NoSuchObject, NotSent
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.hms.probe import CompareAndSet, Probe, lock_service
from commit_coord.local import HiveMetastore
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.testing.contract import PATIENCE, latch, soon
from tests.hive.proxy import Proxy

NOWHERE = "thrift://127.0.0.1:1"
PATIENT = MetastoreAccess(timeout_ms=int(PATIENCE * 1000))
"""A client that leaves no server only because the machine is slow."""


@pytest.fixture
def proxy(hms: HiveMetastore) -> Iterator[Proxy]:
    with Proxy(hms.uri) as proxy:
        yield proxy


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"thrift://127.0.0.1:{listener.getsockname()[1]}"


def test_a_connection_serves_many_calls(proxy: Proxy) -> None:
    client = MetastoreClient(proxy.uri, PATIENT)
    for _ in range(5):
        client.get_all_databases()
    assert len(proxy.sockets) == 2
    with pytest.raises(NoSuchObject, match="not found"):
        client.get_table("default", "nothing")
    client.get_all_databases()
    assert len(proxy.sockets) == 2, "an error that the server declares ends no connection"
    client.close()


def test_an_idle_connection_that_was_cut_is_not_used(proxy: Proxy) -> None:
    """A call on it would be lost without anybody's knowing whether it was sent."""
    client = MetastoreClient(proxy.uri, PATIENT)
    client.get_all_databases()
    proxy.cut()
    lock_id, granted = client.lock([_part()], user="u", host="h", agent="a")
    assert granted
    client.unlock(lock_id)


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_call_that_changes_nothing_is_repeated(proxy: Proxy, lost: str) -> None:
    client = MetastoreClient(proxy.uri, PATIENT)
    getattr(proxy, lost).extend(["get_all_databases"] * 2)
    assert "default" in client.get_all_databases()
    assert proxy.seen.count("get_all_databases") == 3 == client.calls["get_all_databases"]


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_call_that_changes_something_is_sent_once(proxy: Proxy, lost: str) -> None:
    client = MetastoreClient(proxy.uri, PATIENT)
    getattr(proxy, lost).append("lock")
    with pytest.raises(LostReply, match="did not answer.*call='lock'"):
        client.lock([_part()], user="u", host="h", agent=f"lost-{lost}")
    assert proxy.seen.count("lock") == 1
    left = [one.lock_id for one in client.show_locks() if one.agent == f"lost-{lost}"]
    assert len(left) == (1 if lost == "swallow" else 0)
    for lock_id in left:
        client.unlock(lock_id)
        client.unlock(lock_id)


def test_what_was_not_sent_is_sent_to_the_next_server(hms: HiveMetastore) -> None:
    client = MetastoreClient(f"{NOWHERE}, {hms.uri}", PATIENT)
    lock_id, _ = client.lock([_part()], user="u", host="h", agent="a")
    client.unlock(lock_id)
    assert client.address == hms.uri


def test_a_server_that_goes_away_is_left_for_the_next(hms: HiveMetastore, proxy: Proxy) -> None:
    client = MetastoreClient(f"{proxy.uri},{hms.uri}", PATIENT)
    client.get_all_databases()
    assert client.address == proxy.uri
    proxy.close()
    client.get_all_databases()
    assert client.address == hms.uri


def test_a_server_that_never_answers_is_an_error_in_time(silent: str) -> None:
    client = MetastoreClient(silent, MetastoreAccess(timeout_ms=300))
    started = time.monotonic()
    with pytest.raises(MetastoreUnavailable, match="did not answer"):
        client.get_all_databases()
    assert time.monotonic() - started < PATIENCE
    with HmsLockManager(client.service) as manager, pytest.raises(LockServiceUnavailable) as error:
        manager.acquire(latch(), deadline=soon(0.5))
    for fact in ("did not answer", "did not answer the call in time", "hive.client-timeout-ms", "waited_ms"):
        assert fact in str(error.value)


def test_a_server_that_never_answers_is_left_for_the_next(silent: str, hms: HiveMetastore) -> None:
    MetastoreClient(hms.uri, PATIENT).get_all_databases()  # a new server's first answer takes long
    client = MetastoreClient(f"{silent},{hms.uri}", MetastoreAccess(timeout_ms=1000))
    assert "default" in client.get_all_databases()


def test_no_server_is_a_clear_error() -> None:
    client = MetastoreClient(f"{NOWHERE},thrift://127.0.0.1:2", MetastoreAccess(timeout_ms=300))
    with pytest.raises(NotSent, match=r"none of the metastores can be reached.*127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        client.get_all_databases()


@pytest.mark.slow
def test_calls_that_come_during_a_restart_wait_for_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    with HiveMetastore(tmp_path_factory.mktemp("hms") / "s") as own:
        client = MetastoreClient(own.uri, PATIENT)
        client.get_all_databases()
        own.restart()
        assert "default" in client.get_all_databases()


def test_each_server_is_tried_out_once_and_again_after_a_fail_over(hms: HiveMetastore, proxy: Proxy) -> None:
    client = MetastoreClient(f"{proxy.uri},{hms.uri}", PATIENT)
    probe = Probe(client)
    first = probe.capabilities()
    assert (first.server, first.compare_and_set, first.tried) == (proxy.uri, CompareAndSet.HONOURED, True)
    made = client.calls["create_table"]
    assert probe.capabilities() is first
    assert client.calls["create_table"] == made
    proxy.close()
    client.get_all_databases()
    assert probe.capabilities().server == hms.uri
    assert client.calls["create_table"] == made + 1
    assert [name for name in client.get_all_tables("default") if "probe" in name] == []


def test_what_is_assumed_is_not_tried(hms: HiveMetastore) -> None:
    client = MetastoreClient(hms.uri, PATIENT)
    found = Probe(client, CompareAndSet.IGNORED).capabilities()
    assert (found.compare_and_set, found.tried) == (CompareAndSet.IGNORED, False)
    assert client.calls["create_table"] == 0


def test_a_swap_is_sent_to_the_server_that_was_tried_and_to_no_other(hms: HiveMetastore) -> None:
    client = MetastoreClient(hms.uri, PATIENT)
    sent = client.calls["alter_table_with_environment_context"]
    with pytest.raises(FailedOver):
        client.alter_table("default", "t", None, expected=("a", "b"), server=NOWHERE)
    assert client.calls["alter_table_with_environment_context"] == sent


def test_the_lock_service_is_tried_out(hms: HiveMetastore) -> None:
    client = MetastoreClient(hms.uri, PATIENT)
    found = lock_service(client)
    assert (found.there, found.exclusive_write) == (True, False)
    assert client.show_locks("commit-coord") == []


def test_names_with_quotes_break_nothing(hms: HiveMetastore) -> None:
    """Hive 2.3 puts the names of a listing into its SQL as they are."""
    client = MetastoreClient(hms.uri, PATIENT)
    assert client.show_locks("it's", 'a "t"') == []


def test_an_error_of_the_server_passes_through_pythons_context_managers(hms: HiveMetastore) -> None:
    """Thrift's own errors are frozen: contextlib fails on them when it notes the traceback."""
    from contextlib import contextmanager

    @contextmanager
    def passing() -> Iterator[None]:
        yield

    client = MetastoreClient(hms.uri, PATIENT)
    with pytest.raises((MetaError, NoSuchObject), match="nowhere"), passing():
        client.get_table("nowhere", "t")


def test_a_forked_child_has_connections_of_its_own(proxy: Proxy) -> None:
    client = MetastoreClient(proxy.uri, PATIENT)
    client.get_all_databases()
    child = os.fork()
    if not child:
        client.get_all_databases()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.get_all_databases()
    assert len(proxy.sockets) == 4


@pytest.mark.parametrize("uri", ["http://x:1", "thrift://", "thrift://h:port", "thrift://h:1/path", "h:9083", ""])
def test_a_uri_that_is_none_is_a_clear_error(uri: str) -> None:
    with pytest.raises(ConfigError, match="invalid metastore uri"):
        MetastoreClient(uri, PATIENT)


def test_how_to_talk_to_it_travels_as_one_text() -> None:
    client = client_of(
        {"uri": "thrift://a:1,thrift://b", "ugi": "ann:staff", "hive.kerberos-authentication": "true"}, timeout_ms=7
    )
    again = MetastoreClient.of(client.service)
    assert (again.addresses, again.access) == (("thrift://a:1", "thrift://b:9083"), client.access)
    assert again.access == MetastoreAccess(timeout_ms=7, ugi="ann:staff", kerberos_service="hive")


def test_the_user_of_the_calls_can_be_named(hms: HiveMetastore) -> None:
    client = MetastoreClient(hms.uri, replace(PATIENT, ugi="ann:staff"))
    assert "default" in client.get_all_databases()


def test_kerberos_without_its_packages_is_a_clear_error(hms: HiveMetastore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("puresasl.mechanisms.have_kerberos", False)  # as pure-sasl has it without that package
    monkeypatch.setattr("puresasl.mechanisms.mechanisms", {})
    with pytest.raises(ConfigError, match="missing optional dependency of Kerberos"):
        MetastoreClient(hms.uri, MetastoreAccess(kerberos_service="hive")).get_all_databases()


def test_a_principal_that_the_metastore_refuses_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negotiation as Thrift has it, by a mechanism that needs no ticket."""
    plain = partial(TSaslClientTransport, mechanism="PLAIN", username="ann", password="wrong")
    monkeypatch.setattr("commit_coord.hms.connection.TSaslClientTransport", plain)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(4096)
                reason = b"GSS initiate failed"
                caller.sendall(struct.pack(">BI", TSaslClientTransport.BAD, len(reason)) + reason)
                caller.recv(4096)

        threading.Thread(target=refuse, daemon=True).start()
        client = MetastoreClient(
            f"thrift://127.0.0.1:{server.getsockname()[1]}", MetastoreAccess(kerberos_service="hiev")
        )
        with pytest.raises(MetastoreUnavailable, match="authentication failed.*hiev.*kinit.*GSS initiate failed"):
            client.get_all_databases()


def test_a_server_that_hangs_up_at_the_first_word_may_want_kerberos() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(4096)

        threading.Thread(target=hang_up, daemon=True).start()
        client = MetastoreClient(f"thrift://127.0.0.1:{server.getsockname()[1]}", PATIENT)
        with pytest.raises(LostReply, match="hive.kerberos-authentication"):
            client.lock([_part()], user="u", host="h", agent="a")


def _part() -> LockPart:
    return LockPart(type=LockType.EXCLUSIVE, db="commit-coord", table=f"t{uuid.uuid4().hex}")
