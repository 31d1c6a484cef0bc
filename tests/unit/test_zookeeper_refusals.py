"""What an error says after ZooKeeper refused a client."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kazoo.exceptions import AuthFailedError

from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.refusals import Refusals


@pytest.mark.parametrize(
    "auth, accepted",
    [("digest", "lock.zk.user and lock.zk.password"), ("sasl", "lock.zk.user"), ("kerberos", "a valid ticket")],
)
def test_a_refused_login_names_what_the_servers_accept_for_this_way_to_log_in(
    monkeypatch: pytest.MonkeyPatch, auth: str, accepted: str
) -> None:
    monkeypatch.setattr(EnsembleAccess, "_check_sasl", lambda _: None)  # the package of Kerberos is not installed
    refusals = Refusals(EnsembleAccess(hosts="localhost:1", auth=auth, user="ann", password="x"))
    client = SimpleNamespace(logger=SimpleNamespace(last=""))
    with pytest.raises(LockServiceUnavailable, match="authentication failed") as error, refusals.translated(client):
        raise AuthFailedError("refused")
    assert str(error.value.details["accepted"]).startswith(accepted)
