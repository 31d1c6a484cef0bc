"""What files were written for is distinguished by its content, also where many tables come and go."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from commit_coord.iceberg.written import _TEXTS, digest, text_of


def _schema(name: str) -> Schema:
    return Schema(NestedField(1, name, LongType()))


def test_a_schema_at_the_address_of_one_that_is_gone_is_not_taken_for_it() -> None:
    addresses = set()
    for number in range(200):
        schema = _schema(f"c{number}")
        addresses.add(id(schema))
        assert text_of(schema) == text_of(schema) == schema.model_dump_json()
        del schema
    assert len(addresses) < 200


def test_texts_of_schemas_that_are_gone_are_not_kept() -> None:
    before = len(_TEXTS)
    kept = _schema("kept")
    for number in range(50):
        assert digest(_schema(f"c{number}")) != digest(kept)
    assert len(_TEXTS) == before + 1
