"""DuckDB, unmodified, in front of a coordinated catalog. Its requests have fields that no other client sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.proof.rows.read.readers import connect_duckdb
from tests.rest.kit import Server


@pytest.mark.parametrize("clauses", ["", "PARTITIONED BY (key)", "WITH ('format-version'='3')"])
def test_a_table_is_created_changed_evolved_renamed_and_read_back(
    server: Server, named: Callable[[str], str], clauses: str
) -> None:
    made, name = named("made"), named("renamed")
    connection = connect_duckdb("httpfs", "avro", "iceberg")
    connection.execute(f"ATTACH 'shop' AS shop (TYPE iceberg, ENDPOINT '{server.url}', AUTHORIZATION_TYPE 'none')")

    def ask(statement: str) -> list[Any]:
        found: list[Any] = connection.execute(statement).fetchall()
        return found

    ask(f"CREATE TABLE shop.db.{made} (key BIGINT, value STRUCT(text VARCHAR), list INTEGER[]) {clauses}")
    ask(f"INSERT INTO shop.db.{made} VALUES (1, {{'text': 'a'}}, [1]), (2, NULL, NULL), (3, {{'text': NULL}}, [])")
    ask(f"DELETE FROM shop.db.{made} WHERE key = 2")
    ask(f"UPDATE shop.db.{made} SET list = [7] WHERE key = 3")
    ask(f"ALTER TABLE shop.db.{made} ADD COLUMN note VARCHAR")
    ask(f"ALTER TABLE shop.db.{made} RENAME TO {name}")
    expected = [(1, {"text": "a"}, [1], None), (3, {"text": None}, [7], None)]
    assert expected == ask(f"SELECT * FROM shop.db.{name} ORDER BY key")
    with server.library() as catalog:
        rows = catalog.load_table(("db", name)).scan().to_arrow().sort_by("key").to_pylist()
    assert expected == [tuple(row.values()) for row in rows]
    ask(f"DROP TABLE shop.db.{name}")
    connection.close()
