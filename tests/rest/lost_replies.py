"""Clients of two servers behind a proxy that loses replies and sends requests twice; the servers are killed.

    python -m tests.rest.lost_replies --seed 7 --seconds 120
    python -m tests.rest.lost_replies --seed 7 --runs 50

What is judged: each acknowledged append is in the table once, a refused one never; a request that is sent again with
its key is answered as the first time; every file that the table refers to is there; no lock is left. A server that is
killed between the note that a creation begins and the creation leaves one answer open: a repeat's says to look.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.iceberg import manifest_list
from commit_coord.model import LockEntry, LockMode, Resource
from commit_coord.testing.fleet import holds_within
from commit_coord.testing.history import (
    Answer,
    Append,
    check_appends,
    check_files,
    check_line,
    check_snapshots,
)
from tests.limits import PATIENCE
from tests.rest.kit import SCHEMA, Server, ids, library, path_of
from tests.sent import body_of

T = TypeVar("T")

TABLE = ("db", "t")
MARK = "mark"
KILLED, UNKNOWN_CREATION = "killed", "creation unknown"
_PATIENCE_S = PATIENCE


def new_key() -> str:
    """Return a UUID of version 7."""
    return str(uuid.UUID(int=uuid.uuid4().int & ~(0xF << 76) | 7 << 76))


def appended(table: Table, mark: str) -> dict[str, Any]:
    """Return a commit that appends a row with *mark*, as PyIceberg sends it; its files are written, it is not sent."""
    tx = table.transaction()
    tx.append(ids(1), snapshot_properties={MARK: mark})
    return body_of(tx)


class Servers:
    """Two servers of one catalog, which are killed and started anew.

    Args:
        folder: Of the catalog.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alive = [Server(folder), Server(folder)]
        self._mutex = threading.Lock()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where they listen."""
        with self._mutex:
            return [(address.hostname or "", address.port or 0) for address in (urlsplit(s.url) for s in self._alive)]

    def kill(self, number: int) -> None:
        """Kill one, and start another in its place."""
        server = self._alive[number]
        server.process.send_signal(signal.SIGKILL)
        server.process.communicate()
        started = Server(self._folder)
        with self._mutex:
            self._alive[number] = started

    def end(self) -> None:
        """Stop both."""
        for server in self._alive:
            server.process.send_signal(signal.SIGTERM)
        for server in self._alive:
            server.process.communicate(timeout=_PATIENCE_S)


class Network:
    """A proxy in front of the servers.

    Args:
        servers: Where requests go, to any of them.
        seed: Of the choices.
        loses: The share of replies that are lost.
        doubles: The share of requests that both servers get at once.
    """

    def __init__(self, servers: Servers, seed: int, *, loses: float, doubles: float) -> None:
        self._servers, self._dice, self._loses, self._doubles = servers, random.Random(seed), loses, doubles
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.done: Counter[str] = Counter()
        """What was done to requests."""
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """Lose and double nothing any more."""
        self._loses = self._doubles = 0.0

    def close(self) -> None:
        """Take no connection any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve one request, and end the connection."""
        with client, suppress(OSError):
            request = _whole(client)
            if not request:
                return
            addresses = self._servers.addresses
            self._dice.shuffle(addresses)
            if self._dice.random() < self._doubles:
                self.done["doubled"] += 1
                twin = threading.Thread(target=_ask, args=(addresses[1], request), daemon=True)
                twin.start()
            answer = _ask(addresses[0], request)
            if self._dice.random() < self._loses:
                self.done["lost"] += 1
                client.sendall(answer[: self._dice.choice((0, len(answer) // 2))])
                return
            self.done["answered" if answer else "server gone"] += 1
            client.sendall(answer)


def _whole(client: socket.socket) -> bytes:
    """Return one request, and ask for the end of the connection behind its answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (chunk := client.recv(1 << 16)):
            return b""
        data += chunk
    head, body = data.split(b"\r\n\r\n", 1)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    sizes = [int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")]
    while sizes and len(body) < sizes[0]:
        if not (chunk := client.recv(1 << 16)):
            return b""
        body += chunk
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


def _ask(address: tuple[str, int], request: bytes) -> bytes:
    """Return the answer of a server; nothing, or a part of it, where it was killed."""
    answer = b""
    with suppress(OSError), socket.create_connection(address, timeout=_PATIENCE_S) as server:
        server.sendall(request)
        while chunk := server.recv(1 << 16):
            answer += chunk
    return answer


def _is_final(status: int, _body: bytes) -> bool:
    return status < 500 and status != 429


def _is_final_or_unknown(status: int, body: bytes) -> bool:
    return _is_final(status, body) or (status == 500 and b'"CommitStateUnknownException"' in body)


@dataclass(slots=True)
class Log:
    """What the clients were told. Thread safe, as lists are."""

    appends: list[Append] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Client:
    """One client behind the network.

    Args:
        network: What it asks.
        log: What it notes.
        name: Of its own.
        seed: Of its choices.
        until: Whether it may stop.
    """

    def __init__(self, network: Network, log: Log, name: str, seed: int, until: Callable[[], bool]) -> None:
        self._network, self._log, self.name, self._until = network, log, name, until
        self._dice = random.Random(f"{seed} {name}")
        self._number = 0

    def mark(self) -> str:
        """Return a mark that no other append has."""
        self._number += 1
        return f"{self.name}-{self._number}"

    def catalog(self) -> RestCatalog:
        """Return PyIceberg's client."""
        return self._patiently(lambda: RestCatalog("rest", uri=self._network.url))

    def load(self, catalog: RestCatalog) -> Table:
        """Return the table."""
        table: Table = self._patiently(lambda: catalog.load_table(TABLE))
        return table

    def note(self, mark: str, answer: Answer, snapshot_id: int | None = None) -> None:
        """Note what became of an append."""
        self._log.appends.append(Append(mark=mark, answer=answer, snapshot_id=snapshot_id))
        self._log.statuses[f"append {answer}"] += 1

    def send(
        self, method: str, path: str, document: Any = None, final: Callable[[int, bytes], bool] = _is_final
    ) -> tuple[int, bytes]:
        """Return what is answered to a request with a key, which is sent until *final* says that this is the answer.

        Raises:
            TimeoutError: It never was.
        """
        key, answered = new_key(), list[tuple[int, bytes]]()
        body = None if document is None else json.dumps(document).encode()

        def is_answered() -> bool:
            address = urlsplit(self._network.url)
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_S)
            with closing(connection), suppress(OSError, http.client.HTTPException):
                connection.request(method, path, body, {"Idempotency-Key": key})
                answer = connection.getresponse()
                answered.append((answer.status, answer.read()))
                self._log.statuses[f"{method} {answer.status}"] += 1
                return final(*answered[-1])
            return False

        if not holds_within(is_answered, _PATIENCE_S):
            raise TimeoutError(f"{method} {path} was never answered")
        return answered[-1]

    def expect(self, wanted: int, method: str, path: str, document: Any = None) -> None:
        """Send a request that nothing blocks; note what is answered if it is not *wanted*."""
        status, body = self.send(method, path, document)
        if status != wanted:
            self._log.broken.append(f"{self.name}: {method} {path} was answered {status}: {body.decode()}")

    def run(self) -> None:
        """Do one thing after the other until it is time to stop."""
        try:
            while not self._until():
                self.step()
        except Exception as error:  # noqa: BLE001 - the judge's
            self._log.broken.append(f"{self.name}: {type(error).__name__}: {error}")

    def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def _patiently(self, ask: Callable[[], T]) -> T:
        got, failed = list[T](), list[Exception]()

        def succeeds() -> bool:
            try:
                got.append(ask())
            except Exception as error:  # noqa: BLE001 - raised below, if it lasts
                failed.append(error)
            return bool(got)

        if not holds_within(succeeds, _PATIENCE_S):
            raise failed[-1]
        return got[0]


class PyIcebergAppender(Client):
    """Appends through PyIceberg, which sends no keys and gives up when a reply is lost."""

    def step(self) -> None:
        """Append a row."""
        mark = self.mark()
        try:
            table = self.load(self.catalog())
            table.append(ids(1), snapshot_properties={MARK: mark})
        except CommitFailedException:
            self.note(mark, Answer.REFUSED)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
            self._log.statuses[f"PyIceberg {type(error).__name__}"] += 1
            self.note(mark, Answer.UNKNOWN)
        else:
            self.note(mark, Answer.ACKNOWLEDGED)


class KeyedAppender(Client):
    """Appends by requests with keys, sent until they are answered."""

    def step(self) -> None:
        """Append a row."""
        mark, table = self.mark(), self.load(self.catalog())
        commit = self._patiently(lambda: appended(table, mark))
        (snapshot_id,) = (update["snapshot"]["snapshot-id"] for update in commit["updates"] if "snapshot" in update)
        try:
            status, body = self.send("POST", path_of(*TABLE), commit)
        except TimeoutError:
            self.note(mark, Answer.UNKNOWN)
            return
        if status == 200:
            self.note(mark, Answer.ACKNOWLEDGED, snapshot_id)
        elif status == 409:
            self.note(mark, Answer.REFUSED)
        else:
            self._log.broken.append(f"{mark} was answered {status}: {body.decode()}")


class Administrator(Client):
    """Makes, changes and drops what nobody else touches: each request is answered as if nothing went wrong."""

    def step(self) -> None:
        """Go through the life of a namespace and a table."""
        space = self.mark().replace("-", "_")
        spaces = "/v1/shop/namespaces"
        self.expect(200, "POST", spaces, {"namespace": [space]})
        self.expect(200, "POST", f"{spaces}/{space}/properties", {"updates": {"a": "1"}})
        self._create(space)
        update = {"action": "set-properties", "updates": {"a": "1"}}
        self.expect(200, "POST", path_of(space, "a"), {"requirements": [], "updates": [update]})
        ends = [{"namespace": [space], "name": name} for name in ("a", "b")]
        self.expect(204, "POST", "/v1/shop/tables/rename", {"source": ends[0], "destination": ends[1]})
        self.expect(204, "DELETE", path_of(space, "b"))
        self.expect(204, "DELETE", f"{spaces}/{space}")

    def _create(self, space: str) -> None:
        """Create a table; do what the server asks for if it can't tell whether the killed one has created it."""
        path, made = f"/v1/shop/namespaces/{space}/tables", {"name": "a", "schema": SCHEMA.model_dump(mode="json")}
        status, body = self.send("POST", path, made, _is_final_or_unknown)
        while status == 500:
            self._log.statuses[UNKNOWN_CREATION] += 1
            status, body = self.send("GET", path_of(space, "a"))
            if status == 404:
                status, body = self.send("POST", path, made, _is_final_or_unknown)
        if status != 200:
            self._log.broken.append(f"{self.name}: the table of {space} was answered {status}: {body.decode()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done, and what does not hold.

    Args:
        done: How often what was done and answered.
        broken: In words; empty is the proof.
    """

    done: dict[str, int]
    broken: list[str]


def run(
    folder: Path, seed: int, *, seconds: float, kill_every_s: float, loses: float = 0.2, doubles: float = 0.1
) -> Report:
    """Have clients work for *seconds* while servers are killed, and judge what became of the table."""
    dice, log, stopped = random.Random(seed), Log(), threading.Event()
    servers = Servers(folder)
    network = Network(servers, seed, loses=loses, doubles=doubles)
    kinds: tuple[type[Client], ...] = (PyIcebergAppender, KeyedAppender, KeyedAppender, Administrator)
    clients = [kind(network, log, f"{kind.__name__}{n}", seed, stopped.is_set) for n, kind in enumerate(kinds)]
    clients[0].expect(200, "POST", "/v1/shop/namespaces", {"namespace": ["db"]})
    table = {"name": TABLE[1], "schema": SCHEMA.model_dump(mode="json")}
    clients[0].expect(200, "POST", "/v1/shop/namespaces/db/tables", table)
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, kill_every_s * dice.uniform(0.5, 1.5)))  # the subject: a kill comes at any moment
        if time.monotonic() < deadline:
            servers.kill(dice.randrange(2))
            log.statuses[KILLED] += 1
    stopped.set()
    for thread in threads:
        thread.join()
    network.heal()
    servers.end()
    network.close()
    unknown, killed = log.statuses[UNKNOWN_CREATION], log.statuses[KILLED]
    if unknown > killed:
        log.broken.append(f"{unknown} creations are unknown, and {killed} servers were killed")
    return Report(done=dict(network.done + log.statuses), broken=[*log.broken, *_judged(folder, log)])


def _left(catalog: CoordinatedCatalog) -> list[LockEntry]:
    """Return the locks that do not end, although a client is at work.

    The heartbeat of any holder removes what has expired and nobody waits for: the key of a request of a killed server,
    for example, whose twin was answered. The servers themselves may have ended before it expires.
    """
    judge = Resource(("judge",))

    def others() -> list[LockEntry]:
        return [entry for entry in catalog.locks.locks() if entry.resource != judge]

    with catalog.lock_operation({judge: LockMode.SHARED}):
        return [] if holds_within(lambda: not others(), _PATIENCE_S) else others()


def _judged(folder: Path, log: Log) -> list[str]:
    with library(folder) as catalog:
        broken = [f"{entry} is left" for entry in _left(catalog)]
        found = catalog.load_table(TABLE)
        location = found.metadata_location
        body = json.loads(_local(location).read_bytes())
        broken += check_appends(log.appends, body, MARK)
        broken += check_snapshots(body)
        line, uneven = check_line(location, lambda path: json.loads(_local(path).read_bytes()), files=200)
        lists = [snapshot["manifest-list"] for snapshot in body["snapshots"]]
        broken += uneven + check_files([*line, *lists], lambda path: _local(path).exists())
        manifests = [one.manifest_path for one in manifest_list.read(found.io, lists[-1])] if lists else []
        broken += check_files(manifests, lambda path: _local(path).exists())
        files = Counter(task.file.file_path for task in found.scan().plan_files())
        broken += [f"the file {path} is there {times} times" for path, times in files.items() if times > 1]
        broken += check_files(files, lambda path: _local(path).exists())
        if len(found.scan().to_arrow()) != len(body["snapshots"]):
            broken.append(f"{len(found.scan().to_arrow())} rows in {len(body['snapshots'])} snapshots of one row each")
    return broken


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def main() -> None:
    """Run seeds, and say what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="as many seeds, from --seed on")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill-every-s", type=float, default=5.0)
    parser.add_argument("--loses", type=float, default=0.2)
    parser.add_argument("--doubles", type=float, default=0.1)
    chosen = parser.parse_args()
    failed = False
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        with tempfile.TemporaryDirectory(prefix="coord-lost-") as folder:
            report = run(
                Path(folder),
                seed,
                seconds=chosen.seconds,
                kill_every_s=chosen.kill_every_s,
                loses=chosen.loses,
                doubles=chosen.doubles,
            )
        print(f"seed {seed}: {report.done}", *report.broken, sep="\n", flush=True)
        failed |= bool(report.broken)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
