"""The mistakes that users make: each ends in a sentence and a hint, with its exit code, and without a traceback.

A mistake is a row of ``MISTAKES``: what is prepared, the command, its exit code, and words of the sentence and of the
hint. The same holds of each with ``--json``.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
    ValidationException,
)
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

import commit_coord
import commit_coord.spark
from commit_coord.cli import app
from commit_coord.cli.app import _COMMANDS, _is_broken
from commit_coord.cli.exit_codes import ExitCode
from commit_coord.cli.failures import explain
from commit_coord.errors import (
    CommitCoordError,
    ConfigError,
    DatabaseUnavailable,
    LockServiceUnavailable,
    MetastoreUnavailable,
    StaleRead,
)
from commit_coord.local import ServerFailed
from tests import limits
from tests.test_errors import RAISED

DEAD = "127.0.0.1:1"
"""Where no service listens."""


@dataclass
class Place:
    """A folder with a catalog in it, in which a user makes a mistake.

    Args:
        folder: The folder; also the working directory and the home of the user.
        monkeypatch: Undoes at the end what is prepared.
    """

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def database(self) -> Path:
        """The file of the catalog."""
        return self.folder / "catalog.db"

    @property
    def catalog(self) -> list[str]:
        """The options that name the catalog."""
        return ["-c", "shop", "--uri", f"coord+sqlite:///{self.database}", "--warehouse", f"{self.folder}/warehouse"]

    def command(self, line: str) -> list[str]:
        """Return the arguments of *line*, in which ``@`` is replaced by the catalog and ``~`` by the folder."""
        words = re.findall(r'"([^"]*)"|(\S+)', line)
        found: list[str] = []
        for quoted, word in words:
            found += self.catalog if word == "@" else [(quoted or word).replace("~", str(self.folder))]
        return found


def nothing(place: Place) -> None:
    """Prepare nothing."""


def configured(text: str) -> Callable[[Place], None]:
    """Return what writes *text* into PyIceberg's configuration."""

    def prepare(place: Place) -> None:
        (place.folder / ".pyiceberg.yaml").write_text(text.replace("~", str(place.folder)))

    return prepare


def written(name: str, text: str) -> Callable[[Place], None]:
    """Return what writes *text* into the file *name*."""

    def prepare(place: Place) -> None:
        (place.folder / name).write_text(text)

    return prepare


_IMPORT_EXTRAS = tuple(
    f"commit_coord.{part}"
    for part in (
        "sql",
        "rest",
        "spark.",
        "hms",
        "locks.hms",
        "locks.zookeeper",
        "locks.migration",
        "catalog.hive",
        "catalog.metastore",
        "catalog.migration",
    )
)
"""Where modules are that import packages of extras."""


_imported_before: set[str] = set()
"""The modules that were there when :func:`without` forgot some of them; empty in a test that does not call it."""


def without(*packages: str) -> Callable[[Place], None]:
    """Return what makes *packages* missing, and forgets the modules that have imported them."""

    def prepare(place: Place) -> None:
        _imported_before.update(sys.modules)
        below = tuple(f"{package}." for package in packages)
        for name in [name for name in sys.modules if name.startswith((*_IMPORT_EXTRAS, *below)) or name in packages]:
            parent, _, last = name.rpartition(".")
            if last in vars(sys.modules.get(parent, object)):
                # An import puts the new module there, and later tests would patch that one.
                place.monkeypatch.setattr(sys.modules[parent], last, sys.modules[name])
            place.monkeypatch.delitem(sys.modules, name)
        for package in packages:
            place.monkeypatch.setitem(sys.modules, package, None)

    return prepare


def lost_metadata(place: Place) -> None:
    """Delete the metadata of the table."""
    for file in (place.folder / "warehouse").rglob("*.metadata.json"):
        file.unlink()


def broken_metadata(place: Place) -> None:
    """Cut the metadata of the table off."""
    for file in (place.folder / "warehouse").rglob("*.metadata.json"):
        file.write_text('{"format-version": 2, ')


def another_database(place: Place) -> None:
    """Put a database of something else in the place of the catalog's."""
    place.database.unlink()
    with sqlite3.connect(place.database) as db:
        db.execute("CREATE TABLE iceberg_tables (a INTEGER)")
    db.close()


def port_in_use(place: Place) -> None:
    """Listen on a port, whose number is then in the configuration of the server."""
    listener = socket.create_server(("127.0.0.1", 0))
    place.monkeypatch.setattr(Place, "listener", listener, raising=False)
    (place.folder / "serve.toml").write_text(f"port = {listener.getsockname()[1]}\n")
    configured("catalog:\n  shop:\n    uri: coord+sqlite:///~/catalog.db\n    warehouse: ~/warehouse\n")(place)


def without_java(place: Place) -> None:
    """Have JAVA_HOME name a folder that is not there."""
    place.monkeypatch.setenv("JAVA_HOME", str(place.folder / "java"))


def refused_login(place: Place) -> None:
    """Have a PostgreSQL server refuse the password."""
    import psycopg

    def connect(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "ann"')

    place.monkeypatch.setattr(psycopg, "connect", connect)


def unreadable(number: int) -> Callable[[Place], None]:
    """Return what has the reading of files fail with the system's error *number*."""

    def prepare(place: Place) -> None:
        place.monkeypatch.setattr("pyiceberg.io.pyarrow.PyArrowFile.open", _failing(number))

    return prepare


def unwritable(number: int) -> Callable[[Place], None]:
    """Return what has the writing of files fail with the system's error *number*."""

    def prepare(place: Place) -> None:
        place.monkeypatch.setattr("pyiceberg.io.pyarrow.PyArrowFile.create", _failing(number))

    return prepare


def _failing(number: int) -> Callable[..., Any]:
    """Return what fails with the system's error *number*. Who runs the tests may be root, who may do everything."""

    def fail(file: Any, *_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), file.location)

    return fail


def interrupted(place: Place) -> None:
    """Press Ctrl-C while the locks are read."""

    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    place.monkeypatch.setattr("commit_coord.catalog.locking.LockingCatalog.show_locks", press)


@dataclass(frozen=True)
class Mistake:
    """A mistake and its answer.

    Args:
        name: What the user has done.
        line: The command; ``@`` is replaced by the options of the catalog, ``~`` by its folder.
        code: The exit code.
        says: Words of the reason or of the facts.
        hint: Words of the advice, see :func:`advice_of`.
        prepare: What is done before.
    """

    name: str
    line: str
    code: ExitCode
    says: str
    hint: str
    prepare: Callable[[Place], None] = nothing


USAGE, REFUSED, FAILED, MISSING = ExitCode.USAGE, ExitCode.REFUSED, ExitCode.FAILED, ExitCode.MISSING

MISTAKES = [
    # The command line.
    Mistake("a typo in a command", "lokcs", USAGE, "no such command 'lokcs'", "did you mean 'locks'"),
    Mistake("a typo in an option", "locks --wacth @", USAGE, "no such option: --wacth", "--watch"),
    Mistake("a missing argument", "commits @", USAGE, "missing argument 'TABLE'", "--help"),
    Mistake("an option without its value", "locks --uri", USAGE, "--uri", "--help shows"),
    Mistake("a word in place of a number", "commits shop.sales -n many @", USAGE, "a valid integer", "--help shows"),
    Mistake("a number out of range", "commits shop.sales -n -1 @", USAGE, "greater than or equal to 0", "--help shows"),
    Mistake("seconds with a unit", "locks --watch --every 2s @", USAGE, "'--every'", "expected SECONDS"),
    Mistake("an age with another unit", "orphans shop.sales --older-than 3w @", USAGE, "'3w'", "3d, 12h, 90m and 30s"),
    Mistake("too many arguments", "reap shop.sales @", USAGE, "unexpected extra argument", "--help"),
    Mistake("two catalogs", "locks depot shop.sales @", USAGE, "'depot' and 'shop'", "leave one of them out"),
    # The catalog.
    Mistake("an unknown catalog", "locks depot", USAGE, "no catalog 'depot' is configured", ".pyiceberg.yaml"),
    Mistake(
        "a configuration that is no YAML",
        "locks shop",
        USAGE,
        "line='3'",
        "block-style YAML",
        configured("catalog:\n  shop:\n   - uri: [\n"),
    ),
    Mistake("a URI of another kind", "locks --uri coord+mysql://db/shop", USAGE, "mysql", "coord+postgresql:"),
    Mistake("a path in place of a URI", "locks --uri ~/catalog.db", USAGE, "no coordinated catalog", "coord+sqlite:"),
    Mistake(
        "a port that is no number",
        "locks --uri coord+postgresql://db:port/x",
        USAGE,
        "not a database URL",
        "user@host:5432",
    ),
    Mistake(
        "a folder that is not there",
        "locks --uri coord+sqlite:///~/no/catalog.db",
        USAGE,
        "no database",
        "four slashes",
    ),
    Mistake(
        "a folder in place of a file",
        "locks --uri coord+sqlite:///~",
        USAGE,
        "unable to open database file",
        "the file of an SQLite",
    ),
    Mistake(
        "a file that is no database",
        "locks @",
        USAGE,
        "not a database",
        "the file of an SQLite database",
        written("catalog.db", "a text " * 500),
    ),
    Mistake("a database of something else", "commits shop.sales @", USAGE, "failed", "check that", another_database),
    Mistake("a host that does not exist", "locks --uri coord+thrift://no.such.host.invalid:9083", FAILED, "", "check"),
    # Settings.
    Mistake("a property without a value", "locks -p lock.policy @", USAGE, "'lock.policy'", "key=value"),
    Mistake("a typo in a property", "locks -p lock.acquire-timeout=3 @", USAGE, "unknown setting", "-timeout-ms"),
    Mistake("a value with a unit", "locks -p lock.acquire-timeout-ms=3s @", USAGE, "invalid value", "whole number"),
    Mistake("an unknown lock manager", "locks -p lock-impl=etcd @", USAGE, "'etcd'", "zookeeper"),
    Mistake("a lock manager that nobody sees", "locks -p lock-impl=memory @", USAGE, "another lock manager", "lease"),
    # What is not installed.
    Mistake(
        "no SQL extra",
        'sql @ "SHOW LOCKS"',
        MISSING,
        "sqlglot is not installed",
        "commit-coord[sql]",
        without("sqlglot"),
    ),
    Mistake(
        "no server extra", "serve", MISSING, "is not installed", "commit-coord[serve]", without("uvicorn", "msgspec")
    ),
    Mistake(
        "no ZooKeeper extra",
        f"locks @ -c dead -p lock-impl=zookeeper -p lock.uri={DEAD}",
        MISSING,
        "missing",
        "commit-coord[zookeeper]",
        without("kazoo"),
    ),
    Mistake(
        "no PostgreSQL driver",
        f"locks --uri coord+postgresql://{DEAD}/shop",
        MISSING,
        "missing",
        "commit-coord[postgres]",
        without("psycopg", "psycopg2"),
    ),
    Mistake(
        "no Hive extra",
        f"locks --uri coord+thrift://{DEAD}",
        MISSING,
        "missing",
        "commit-coord[hive]",
        without("thrift", "hmsclient"),
    ),
    Mistake("no Spark extra", "demo --folder ~/new", MISSING, "pyspark", "pip install", without("pyspark")),
    Mistake("no Java", "demo --folder ~/new", MISSING, "has none that starts", "install one", without_java),
    # Services that do not answer.
    Mistake(
        "a dead PostgreSQL",
        f"locks --uri coord+postgresql+psycopg://{DEAD}/x",
        FAILED,
        "refused",
        "a server that is up",
    ),
    Mistake(
        "a wrong password",
        f"locks --uri coord+postgresql+psycopg://ann:wrong@{DEAD}/x",
        FAILED,
        "authentication failed",
        "a user and a password",
        refused_login,
    ),
    Mistake("a dead metastore", f"locks --uri coord+thrift://{DEAD}", FAILED, "can't be reached", "check lock.uri"),
    Mistake(
        "a dead ZooKeeper",
        f"locks @ -c dead -p lock-impl=zookeeper -p lock.uri={DEAD}",
        FAILED,
        "did not answer",
        "check lock.uri",
    ),
    Mistake(
        "a write through a lock service that was never reached",
        f'sql @ -c dead -p lock-impl=lease -p lock.uri=postgresql://{DEAD}/x "CREATE DATABASE depot"',
        FAILED,
        "nothing was changed",
        "repeat the command",
    ),
    Mistake(
        "a catalog that is dead under the server",
        "serve -c dead",
        FAILED,
        "can't be opened",
        "a server that is up",
        configured(f"catalog:\n  dead:\n    uri: coord+postgresql+psycopg://{DEAD}/x\n"),
    ),
    # Names.
    Mistake(
        "a table that is not there",
        "commits shop.nope @",
        REFUSED,
        "no table 'shop.nope'",
        "check the name: NAMESPACE.TABLE",
    ),
    Mistake("a table without its namespace", "commits sales @", REFUSED, "no table 'sales'", "NAMESPACE.TABLE"),
    Mistake("a lock that is not there", "unlock shop.sales --yes @", REFUSED, "no lock", "`commit-coord locks`"),
    Mistake(
        "a request id that nobody has", "commits shop.sales --request-id 42 @", REFUSED, "'42'", "repeat the write"
    ),
    Mistake("a length of time that is none", "orphans shop.sales --older-than soon @", USAGE, "'soon'", "3d, 12h"),
    Mistake(
        "a lost file that is not there",
        "repair shop.sales --from file:///no @",
        USAGE,
        "file:///no",
        "the error in the log",
    ),
    # Statements.
    Mistake("a typo in a statement", 'sql @ "SELCT 1"', USAGE, "found 'SELCT'", "HELP lists them"),
    Mistake(
        "a word that is missing",
        'sql @ "SELECT * FROM shop.sales WHERE"',
        USAGE,
        "missing after 'WHERE'",
        "correct the statement",
    ),
    Mistake(
        "a quote without an end",
        'sql @ "SELECT \'a"',
        USAGE,
        "a quote or a comment has no end",
        "correct the statement",
    ),
    Mistake("a table that is misspelled", 'sql @ "SELECT * FROM shop.sale"', USAGE, "no such table", "'sales'"),
    Mistake("a column that is misspelled", 'sql @ "SELECT ip FROM shop.sales"', USAGE, "no such column", "'id'"),
    Mistake(
        "a value of a wrong type",
        "sql @ \"INSERT INTO shop.sales VALUES ('x')\"",
        USAGE,
        "type='long'",
        "correct the statement",
    ),
    Mistake("a query for Spark", 'sql @ "SELECT max(id) FROM shop.sales"', USAGE, "MAX(id)", "run others in Spark"),
    Mistake(
        "a table without a warehouse",
        'sql -c shop --uri coord+sqlite:///~/catalog.db "CREATE TABLE shop.x (a int)"',
        USAGE,
        "no default path is set",
        "specify a location",
    ),
    Mistake("a database that exists", 'sql @ "CREATE DATABASE shop"', USAGE, "already exists", "IF NOT EXISTS"),
    Mistake("a table that exists", 'sql @ "CREATE TABLE shop.sales (a int)"', USAGE, "already exists", "IF NOT EXISTS"),
    Mistake(
        "a column that exists",
        'sql @ "ALTER TABLE shop.sales ADD COLUMNS (ID int)"',
        USAGE,
        "already exists",
        "another name",
    ),
    Mistake("a catalog that has nothing to move", "migrate plan --all @", USAGE, "not on a metastore", "--adopt-locks"),
    Mistake(
        "a question about a metastore's table", "config --table shop.sales @", USAGE, "on a metastore", "leave it out"
    ),
    # Files.
    Mistake("metadata that is gone", "commits shop.sales @", FAILED, "no such file", "check the path", lost_metadata),
    Mistake(
        "metadata that is cut off", "commits shop.sales @", FAILED, "can't be read", "restore the file", broken_metadata
    ),
    Mistake(
        "a folder that can't be made",
        'sql -c shop --uri coord+sqlite:///~/catalog.db --warehouse /dev/null/x "CREATE TABLE shop.x (a int)"',
        FAILED,
        "/dev/null",
        "check the path",
    ),
    Mistake(
        "a database that is read-only",
        'sql -c shop --uri coord+sqlite:///file:~/catalog.db?mode=ro&uri=true "CREATE DATABASE depot"',
        FAILED,
        "readonly database",
        "repeat the command",
    ),
    Mistake(
        "a file that may not be read",
        "commits shop.sales @",
        FAILED,
        "permission denied",
        "check the permissions",
        unreadable(errno.EACCES),
    ),
    Mistake(
        "a folder that may not be written",
        'sql @ "INSERT INTO shop.sales VALUES (7)"',
        FAILED,
        "permission denied",
        "check the permissions",
        unwritable(errno.EACCES),
    ),
    Mistake(
        "a warehouse that is read-only",
        'sql @ "INSERT INTO shop.sales VALUES (7)"',
        FAILED,
        "read-only file system",
        "another place",
        unwritable(errno.EROFS),
    ),
    # Servers and programs.
    Mistake("a port in use", "serve -c shop --config ~/serve.toml", FAILED, "in use", "--port", port_in_use),
    Mistake("settings that are not there", "serve --config ~/no.toml", USAGE, "no.toml", "a TOML file"),
    Mistake("no servers", "local status --folder ~/servers", REFUSED, "up", "commit-coord local up"),
    Mistake("an unknown version", "local up --hms 9.9 --folder ~/servers", USAGE, "9.9", "2.3.10"),
    Mistake("an unknown kind of demo", "demo --backend nope", USAGE, "'nope'", "embedded"),
    Mistake("a folder with something in it", "demo --folder ~", USAGE, "not empty", "name a new one"),
    # The end of a command.
    Mistake("Ctrl-C", "locks @", ExitCode.INTERRUPTED, "interrupted", "", interrupted),
]


@pytest.fixture(autouse=True)
def later_tests_import_what_refers_to_a_forgotten_module() -> Iterator[None]:
    """Forget what was first imported after :func:`without`: it may refer to a module that only this test had."""
    yield
    if _imported_before:
        for name in {name for name in sys.modules if name.startswith("commit_coord.")} - _imported_before:
            parent, _, last = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(last, None)
            del sys.modules[name]
    _imported_before.clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A catalog with the table ``shop.sales``; nobody's own configuration takes part."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = Place(tmp_path, monkeypatch)
    with_rows = pa.table({"id": [1, 2, 3]})
    catalog = commit_coord.load_catalog(
        "shop", uri=f"coord+sqlite:///{made.database}", warehouse=f"{tmp_path}/warehouse"
    )
    catalog.create_namespace("shop")
    catalog.create_table("shop.sales", schema=with_rows.schema).append(with_rows)
    catalog.close()
    return made


@pytest.mark.parametrize("mistake", [pytest.param(one, id=one.name) for one in MISTAKES])
def test_a_mistake_is_answered_by_a_sentence_and_a_hint(place: Place, mistake: Mistake) -> None:
    mistake.prepare(place)
    result = CliRunner().invoke(app, place.command(mistake.line), prog_name="commit-coord")
    assert_answered(mistake, result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("mistake", [pytest.param(one, id=one.name) for one in MISTAKES])
def test_a_mistake_is_answered_by_a_document(place: Place, mistake: Mistake) -> None:
    mistake.prepare(place)
    command = place.command(mistake.line)
    command.insert(2 if command[0] in ("local", "migrate") else 1, "--json")
    result = CliRunner().invoke(app, command, prog_name="commit-coord")
    error = json.loads(result.stdout)["error"]
    assert mistake.code == error["exit_code"] == result.exit_code
    assert mistake.says.lower() in error["message"].lower()
    assert error["kind"] not in ("unexpected", "internal")


_ADVICE = re.compile(
    r"""
    (?: [;:.,?] \s | ^) (?: please\ )?
    (?: add | ask | cast | check | choose | close | correct | do\ not | examples\ are | finish | free | give | grab
      | have | install | keep | leave | look | name | open | pip\ install | put | read | refresh | release | remove
      | repeat | report | restore | run | see | send | specify | start | stop | use | wait
      | `commit-coord\ [^`]*`\ (?:lists|shows|starts) | --help\ shows | expected
    )\b
    | did\ you\ mean | possible\ options | accepted=
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
"""How an advice begins: what the reader does next, or what would have been accepted."""


def advice_of(message: str) -> str:
    """Return the end of *message* that says what to do; "" if it only says what is wrong."""
    found = _ADVICE.search(message)
    return message[found.start() :] if found else ""


def assert_answered(mistake: Mistake, code: int, stdout: str, stderr: str) -> None:
    """Check the end of a command."""
    assert (mistake.code, "") == (code, stdout), stderr
    *above, last = stderr.splitlines()
    assert last.startswith("interrupted" if code == ExitCode.INTERRUPTED else "error: "), stderr
    assert mistake.says.lower() in last.lower(), stderr
    assert mistake.hint.lower() in advice_of(last).lower(), stderr
    assert advice_of(last) or code == ExitCode.INTERRUPTED, stderr
    assert len(above) in (0, 2), "nothing but an excerpt of a statement is above"
    for insides in ("Traceback", "<class", "<Token", "object at 0x", "sqlalche.me", "[Errno", "please report"):
        assert insides not in stderr, stderr


# Through Python and Spark.


def wrong_type(table: Any) -> None:
    """Append texts to a column of numbers."""
    table.append(pa.table({"id": ["1"]}))


def misspelled_setting(table: Any) -> None:
    """Open the catalog with a setting that is not there."""
    properties = table.catalog.configuration.properties
    commit_coord.load_catalog("shop", **{**properties, "lock.acquire-timeout": "3"})


def misspelled_option(table: Any) -> None:
    """Read with an option of ``format("commit_coord")`` that is not there."""
    from commit_coord.spark.datasource import Options

    Options({"tabel": "shop.sales"})


def stale_overwrite(table: Any) -> None:
    """Write what was computed from rows that another client has changed since."""
    read = table.scan().to_arrow()
    table.catalog.load_table(table.name()).append(read)
    table.overwrite(read)


def no_spark(table: Any) -> None:
    """Write through Spark, which is not installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without("pyspark")(Place(Path(), monkeypatch))
        monkeypatch.delitem(vars(commit_coord.spark), "write_table", raising=False)
        commit_coord.spark.write_table(cast(Any, None), table)


def no_sql(table: Any) -> None:
    """Import the statements, whose parser is not installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without("sqlglot")(Place(Path(), monkeypatch))
        importlib.import_module("commit_coord.sql")


@pytest.mark.parametrize(
    "mistake, kind, hint",
    [
        (wrong_type, ValueError, "cast the rows to the columns"),
        (misspelled_setting, ConfigError, "lock.acquire-timeout-ms"),
        (misspelled_option, ConfigError, "'table, path, catalog"),
        (stale_overwrite, StaleRead, "refresh the table, read it again"),
        (no_spark, ModuleNotFoundError, "pip install 'commit-coord[spark]'"),
        (no_sql, ModuleNotFoundError, "pip install 'commit-coord[sql]'"),
    ],
)
def test_a_mistake_in_python_is_answered_by_an_error_with_a_hint(
    place: Place, mistake: Callable[[Any], None], kind: type[Exception], hint: str
) -> None:
    catalog = commit_coord.load_catalog("shop", uri=place.catalog[3], warehouse=place.catalog[5])
    try:
        with pytest.raises(kind) as raised:
            mistake(catalog.load_table("shop.sales"))
    finally:
        catalog.close()
    assert hint in advice_of("".join(traceback.format_exception_only(raised.value))).lower()


# Errors of the library.


@pytest.mark.parametrize("cls", RAISED, ids=lambda cls: cls.__name__)
def test_each_error_of_the_tree_says_what_to_do(cls: type[CommitCoordError]) -> None:
    assert advice_of(explain(cls("it went wrong", request_id="0190")).message)


def test_each_kind_of_error_has_its_own_advice() -> None:
    assert len({explain(cls("it went wrong", request_id="0190")).message for cls in RAISED}) == len(RAISED)


@pytest.mark.parametrize(
    "error",
    [
        TableAlreadyExistsError("it is there"),
        NamespaceAlreadyExistsError("it is there"),
        CommitFailedException("it went wrong"),
        ValidationException("it went wrong"),
        OSError(errno.EIO, "it went wrong"),
        OSError("it went wrong"),
        ServerFailed("it went wrong"),
    ],
    ids=repr,
)
def test_an_error_of_something_else_says_what_to_do(error: Exception) -> None:
    assert advice_of(explain(error).message)


@pytest.mark.parametrize(
    "error, code",
    [
        (LockServiceUnavailable("it is away"), FAILED),
        (MetastoreUnavailable("it is away"), FAILED),
        (DatabaseUnavailable("it is away"), FAILED),
        (OperationalError("SELECT 1", {}, Exception("the connection was closed")), FAILED),
        (OperationalError("SELECT 1", {}, sqlite3.OperationalError("no such column")), USAGE),
    ],
    ids=repr,
)
def test_a_service_that_can_not_be_reached_has_one_exit_code(error: Exception, code: ExitCode) -> None:
    assert code == explain(error).code


def test_there_are_forty_mistakes() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 40


# Ends that only a process of its own has.


def run(place: Place, line: str, shell: str = "{command}") -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, in the shell line *shell*."""
    import shlex

    command = shlex.join([sys.executable, "-m", "commit_coord.cli", *place.command(line)])
    return subprocess.run(
        ["bash", "-c", shell.format(command=command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=limits.PATIENCE,
    )


def test_a_full_disk_for_the_output_is_reported(place: Place) -> None:
    ended = run(place, "commits shop.sales @", "{command} >/dev/full")
    assert (ExitCode.FAILED, "error: no space left on device; free some space on the disk, and try again\n") == (
        ended.returncode,
        ended.stderr,
    )


@pytest.mark.parametrize("given", ["printf '{script}' | {{command}}", "{{command}} '{script}'"])
def test_a_statement_whose_answer_can_not_be_written_was_carried_out(place: Place, given: str) -> None:
    """A user who tries it again would double the rows."""
    script = "INSERT INTO shop.sales VALUES (78); INSERT INTO shop.sales VALUES (79)"
    ended = run(place, "sql @", f"{given.format(script=script)} >/dev/full")
    assert (ExitCode.FAILED, 1) == (ended.returncode, ended.stderr.count("\n"))
    assert ended.stderr.startswith("error: 'INSERT INTO shop.sales VALUES (78);' was carried out, and its answer could")
    rows = run(place, 'sql @ "SELECT * FROM shop.sales"').stdout
    assert "78" in rows
    assert "79" not in rows


@pytest.mark.parametrize("line", ["locks @", 'sql @ "SELECT * FROM shop.sales"'])
def test_a_reader_that_has_seen_enough_is_no_error(place: Place, line: str) -> None:
    ended = run(place, line, "set -o pipefail; {command} | true")
    assert (0, "") == (ended.returncode, ended.stderr)


@pytest.mark.parametrize("given", ["printf '{script}' | {{command}}", "{{command}} '{script}'"])
def test_a_script_whose_output_is_closed_says_what_did_not_run(place: Place, given: str) -> None:
    script = "SELECT * FROM shop.sales; SHOW LOCKS; INSERT INTO shop.sales VALUES (77);"
    ended = run(place, "sql @", f"set -o pipefail; {given.format(script=script)} | true")
    assert FAILED == ended.returncode
    assert ended.stderr.startswith("error: the output was closed, so the script ended before 'SHOW LOCKS;'; send the")
    assert 1 == ended.stderr.count("\n")
    assert "77" not in run(place, 'sql @ "SELECT * FROM shop.sales"').stdout
    last = run(place, "sql @", "set -o pipefail; echo 'SELECT * FROM shop.sales;' | {command} | true")
    assert (0, "") == (last.returncode, last.stderr)


@pytest.mark.parametrize("line", ["locks shop", "unlock shop.sales", "config", "pyiceberg list"])
@pytest.mark.parametrize(
    "text, reason",
    [("catalog:\n  shop: [\n", "line='2', cause='Found ugly disallowed"), ("just text\n", "cause='it is a text")],
    ids=["no YAML", "no mapping"],
)
def test_a_configuration_that_pyiceberg_can_not_read_is_reported(
    place: Place, line: str, text: str, reason: str
) -> None:
    """PyIceberg reads it when it is imported, so this takes a process of its own."""
    configured(text)(place)
    ended = run(place, line)
    assert (USAGE, "", 1) == (ended.returncode, ended.stdout, ended.stderr.count("\n")), ended.stderr
    assert ended.stderr.startswith("error: PyIceberg's configuration can't be read: file='.pyiceberg.yaml', ")
    assert reason in ended.stderr.replace('"', "'")
    assert "accepted=" in ended.stderr


_BROKEN_ELSEWHERE = """
import commit_coord.cli, commit_coord.cli.locks
from commit_coord.catalog.locking import LockingCatalog

def unlock(self, **kwargs):
    raise BrokenPipeError(32, "Broken pipe")

LockingCatalog.unlock = unlock
commit_coord.cli.main()
"""


def test_a_broken_pipe_of_something_else_than_stdout_is_an_error(place: Place) -> None:
    run(place, 'sql @ "LOCK TABLE shop.sales EXCLUSIVE"')
    command = [sys.executable, "-c", _BROKEN_ELSEWHERE, *place.command("unlock shop.sales --yes --json @")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limits.PATIENCE)
    assert FAILED == ended.returncode
    assert ended.stderr.startswith("error: a connection broke; check that the services")
    assert "input-output" == json.loads(ended.stdout)["error"]["kind"]


def test_a_pipe_without_a_reader_is_broken_although_nothing_is_left_to_be_flushed() -> None:
    """A write of more than the buffer holds fails without a trace in the buffer."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        assert not _is_broken(stream)
        os.close(reader)
        assert _is_broken(stream)


def test_a_question_that_nobody_answers_is_reported(place: Place) -> None:
    run(place, 'sql @ "LOCK TABLE shop.sales EXCLUSIVE"')
    ended = run(place, "unlock shop.sales @", "{command} </dev/null")
    assert ended.returncode == USAGE
    assert ended.stderr.endswith("error: the question was not answered: add --yes\n")


def test_a_full_disk_for_the_tables_is_reported_and_changes_nothing(place: Place) -> None:
    rows = ", ".join(f"({number})" for number in range(20_000))
    ended = subprocess.run(
        [sys.executable, "-m", "commit_coord.cli", "sql", *place.catalog],
        input=f"INSERT INTO shop.sales VALUES {rows};",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert ended.returncode == FAILED, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "disk" in ended.stderr
    assert "3\n" == run(place, 'sql @ "SELECT count(*) FROM shop.sales"').stdout


def test_an_audit_log_in_a_folder_that_is_not_there_is_reported_in_a_line(place: Place) -> None:
    run(place, 'sql @ "LOCK TABLE shop.sales EXCLUSIVE"')
    ended = run(place, "unlock shop.sales --yes @ -p commit-coord.audit-log=~/no/such/folder/audit.jsonl")
    assert 0 == ended.returncode
    *_, line = ended.stderr.splitlines()
    assert line.startswith("the audit log can't be written: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("statement", ["DROP TABLE shop.sales", "LOCK TABLE shop.sales EXCLUSIVE"])
def test_a_signal_in_a_statement_that_waits_leaves_nothing_behind(
    place: Place, number: signal.Signals, statement: str
) -> None:
    run(place, 'sql @ "LOCK TABLE shop.sales EXCLUSIVE"')
    # Tests that run in the background ignore some signals, and so would what they start.
    code = (
        "import signal as s, commit_coord.cli as c; s.signal(s.SIGINT, s.default_int_handler); "
        "s.signal(s.SIGTERM, s.SIG_DFL); s.signal(s.SIGHUP, s.SIG_DFL); c.main()"
    )
    waiting = subprocess.Popen(
        [sys.executable, "-c", code, "sql", *place.catalog, statement],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    catalog = commit_coord.load_catalog("shop", uri=place.catalog[3], warehouse=place.catalog[5])
    from tests.processes import until

    until(lambda: len(catalog.show_locks()) == 2, "a waiter")
    waiting.send_signal(number)
    _, stderr = waiting.communicate()
    assert (ExitCode.INTERRUPTED, "interrupted\n") == (waiting.returncode, stderr)
    assert 1 == len(catalog.show_locks())
    catalog.close()


@pytest.mark.parametrize(
    "arguments", [("NAME",), ("shop", "NAME"), ("shop", "--why", "NAME"), ("-c", "NAME"), ("-p", "lock.uri=NAME")]
)
def test_an_argument_that_is_not_utf_8_is_refused_by_every_command(arguments: tuple[str, ...]) -> None:
    for command in _COMMANDS:
        given = [part.replace("NAME", "db.\udcff") for part in arguments]
        ended = CliRunner().invoke(app, [command, *given])
        assert ended.exit_code == ExitCode.USAGE, command
        assert "is not UTF-8; check the encoding" in ended.output


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "-1", "0"])
def test_no_watch_looks_more_rarely_than_once_a_day(place: Place, seconds: str) -> None:
    ended = run(place, f"locks @ --watch --times 2 --every {seconds}")
    assert ended.returncode == ExitCode.USAGE
    assert "Traceback" not in ended.stderr
