"""Iceberg schemas as Spark sees them, and the check of a DataFrame before a row of it is written.

Three kinds of names exist for one field: the table's own, the *file name* (PyIceberg's and Java's Avro-safe
form, which Parquet files contain), and *hidden* names, which none of the files has that are read. The field id
is what ties them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyspark.sql.types as T
from pyiceberg import types as I
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, sanitize_column_names
from pyspark.sql import Column
from pyspark.sql import functions as F

from commit_coord.errors import ConfigError
from commit_coord.iceberg.column_names import id_of

FIELD_ID = "parquet.field.id"
"""Key in a Spark field's metadata. Source: ``org.apache.spark.sql.execution.datasources.parquet.ParquetUtils``."""

CONVENIENT = "write or read it with format('commit_coord')"

SAME: dict[type[I.IcebergType], T.DataType] = {
    I.BooleanType: T.BooleanType(),
    I.IntegerType: T.IntegerType(),
    I.LongType: T.LongType(),
    I.FloatType: T.FloatType(),
    I.DoubleType: T.DoubleType(),
    I.DateType: T.DateType(),
    I.TimestampType: T.TimestampNTZType(),
    I.TimestamptzType: T.TimestampType(),
    I.StringType: T.StringType(),
    I.BinaryType: T.BinaryType(),
}
"""Types that have the same values in Spark."""

_CONVERTED: dict[type[I.IcebergType], T.DataType] = {
    # As the JVM runtime shows them, except time, which it does not know: 'HH:MM:SS.ffffff'.
    I.UUIDType: T.StringType(),
    I.FixedType: T.BinaryType(),
    I.TimeType: T.StringType(),
}
# Lossless only: Iceberg's own promotions, and Spark's smaller integers. First the target, then what fits in it.
_FITS: dict[type[I.IcebergType], tuple[type[T.DataType], ...]] = {
    I.BooleanType: (T.BooleanType,),
    I.IntegerType: (T.ByteType, T.ShortType, T.IntegerType),
    I.LongType: (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    I.FloatType: (T.FloatType,),
    I.DoubleType: (T.FloatType, T.DoubleType),
    I.DateType: (T.DateType,),
    I.TimestampType: (T.TimestampNTZType,),
    I.TimestamptzType: (T.TimestampType,),
    I.StringType: (T.StringType, T.CharType, T.VarcharType),
    I.UUIDType: (T.StringType,),
    I.TimeType: (T.StringType,),
    I.BinaryType: (T.BinaryType,),
    I.FixedType: (T.BinaryType,),
}


class SchemaMismatch(ConfigError):
    """The DataFrame does not fit the table, or the table has a type that this way can't carry. No row was written."""


def table_name(field: I.NestedField) -> str:
    """Name a field as the table does."""
    return field.name


def file_schema(schema: Schema) -> Schema:
    """Return *schema* under file names.

    Raises:
        SchemaMismatch: Two names fall together, as ``a.b`` and ``a_x2Eb`` do.
    """
    safe = sanitize_column_names(schema)
    for struct in [safe.as_struct(), *(kind for _, kind in nested(safe) if isinstance(kind, I.StructType))]:
        names = [field.name for field in struct.fields]
        if twice := {name for name in names if names.count(name) > 1}:
            raise SchemaMismatch("two columns have the same name in Parquet files", names=sorted(twice))
    return safe


def nested(schema: Schema) -> Iterator[tuple[int, I.IcebergType]]:
    """Yield every field of *schema* at every level: its id and its type."""

    def below(kind: I.IcebergType) -> Iterator[tuple[int, I.IcebergType]]:
        match kind:
            case I.StructType():
                children = [(field.field_id, field.field_type) for field in kind.fields]
            case I.ListType():
                children = [(kind.element_id, kind.element_type)]
            case I.MapType():
                children = [(kind.key_id, kind.key_type), (kind.value_id, kind.value_type)]
            case _:
                return
        for field_id, child in children:
            yield field_id, child
            yield from below(child)

    yield from below(schema.as_struct())


def spark_type(kind: I.IcebergType, name: Callable[[I.NestedField], str] = table_name) -> T.DataType:
    """Return the Spark type of *kind*; struct fields carry their ids and are called what *name* says.

    Raises:
        SchemaMismatch: Spark has nothing that holds *kind*.
    """
    match kind:
        case I.StructType():
            return T.StructType(
                [
                    T.StructField(name(f), spark_type(f.field_type, name), not f.required, {FIELD_ID: f.field_id})
                    for f in kind.fields
                ]
            )
        case I.ListType():
            return T.ArrayType(spark_type(kind.element_type, name), not kind.element_required)
        case I.MapType():
            key, value = spark_type(kind.key_type, name), spark_type(kind.value_type, name)
            return T.MapType(key, value, not kind.value_required)
        case I.DecimalType():
            return T.DecimalType(kind.precision, kind.scale)
    found = SAME.get(type(kind)) or _CONVERTED.get(type(kind))
    if found is None:
        raise SchemaMismatch("Spark has no type for a column", type=kind)
    return found


def spark_schema(schema: Schema, name: Callable[[I.NestedField], str] = table_name) -> T.StructType:
    """Return *schema* in Spark's types, with field ids in the metadata."""
    result = spark_type(schema.as_struct(), name)
    assert isinstance(result, T.StructType)
    return result


def nullable(kind: T.DataType, *, ids: bool = True) -> T.DataType:
    """Return *kind* with everything in it nullable: a file may be older than a required field.

    Args:
        kind: Any type.
        ids: Keep the field ids in it.
    """
    match kind:
        case T.StructType():
            return T.StructType(
                [
                    T.StructField(f.name, nullable(f.dataType, ids=ids), True, f.metadata if ids else None)
                    for f in kind.fields
                ]
            )
        case T.ArrayType():
            return T.ArrayType(nullable(kind.elementType, ids=ids), True)
        case T.MapType():
            return T.MapType(nullable(kind.keyType, ids=ids), nullable(kind.valueType, ids=ids), True)
    return kind


def child(column: Column, kind: T.StructType, position: int) -> Column:
    """Return the field at *position* of the struct *column*; also where another one differs from it by case alone.

    A session that folds case finds neither of the two by its name.
    """
    if len({field.name.lower() for field in kind.fields}) == len(kind.fields):
        return column.getField(kind.fields[position].name)
    fields = [T.StructField(f"f{number}", field.dataType, True) for number, field in enumerate(kind.fields)]
    return column.cast(T.StructType(fields)).getField(f"f{position}")


def bare_schema(schema: Schema) -> T.StructType:
    """Return *schema* for Spark with everything nullable and without ids."""
    return T.StructType(
        [T.StructField(f.name, nullable(spark_type(f.field_type), ids=False), True) for f in schema.fields]
    )


def same_by_name(ours: I.IcebergType, theirs: I.IcebergType) -> bool:
    """Say whether names lead from *ours* to the same fields of *theirs* as ids do, each of the same type.

    A field that is missing in *theirs* must be missing by its name as well. Names that differ in case only never do:
    a session that ignores the case would take one for the other.
    """
    match ours, theirs:
        case I.StructType(), I.StructType():
            by_id = {field.field_id: field for field in theirs.fields}
            by_name = {field.name: field for field in theirs.fields}
            return len({field.name.lower() for field in ours.fields}) == len(ours.fields) and all(
                by_id.get(field.field_id) is by_name.get(field.name)
                and (field.field_id not in by_id or same_by_name(field.field_type, by_id[field.field_id].field_type))
                for field in ours.fields
            )
        case I.ListType(), I.ListType():
            return same_by_name(ours.element_type, theirs.element_type)
        case I.MapType(), I.MapType():
            return same_by_name(ours.key_type, theirs.key_type) and same_by_name(ours.value_type, theirs.value_type)
    return ours == theirs


def beyond_parquet(schema: Schema, *, writing: bool) -> str | None:
    """Say which type of *schema* Spark's own Parquet code can't carry, None when it carries all.

    Arrays and maps are read well. Written, their elements get no ids, and a reader that goes by ids (all do
    once a file has one) finds them empty.
    """
    for _, kind in nested(schema):
        if isinstance(kind, I.ListType | I.MapType):
            if writing:
                return str(kind)
        elif isinstance(kind, I.PrimitiveType) and type(kind) not in SAME and not isinstance(kind, I.DecimalType):
            return str(kind)
    return None


def pick(names: Sequence[str], wanted: I.StructType, case_sensitive: bool) -> dict[int, int]:
    """Map field ids of *wanted* to positions in *names*: the same name, else one that differs in case only.

    Names that belong to no field, or to one that has its name already, are left out of the result, and so are fields
    without a name.

    Raises:
        ValidationError: A name matches several fields in another case, and none exactly.
    """
    ids = {field.name: field.field_id for field in wanted.fields}
    found = {ids[name]: position for position, name in enumerate(names) if name in ids}
    if not case_sensitive:
        for position, name in enumerate(names):
            if name not in ids and (field_id := id_of(name, ids)) is not None:
                found.setdefault(field_id, position)
    return found


def check_fits(source: T.StructType, schema: Schema, *, case_sensitive: bool = False) -> None:
    """Return if every row of *source* fits in *schema* and nothing of it would be dropped.

    Raises:
        SchemaMismatch: With every column that is too many, missing, or of another type; nothing was written.
    """
    problems: list[str] = []

    def struct(have: T.StructType, want: I.StructType, path: str) -> None:
        names = have.fieldNames()
        problems.extend(f"{path}{name} comes more than once" for name in {n for n in names if names.count(n) > 1})
        try:
            at = pick(names, want, case_sensitive)
        except ValidationError as error:
            problems.append(f"{path.removesuffix('.')}: {error}" if path else str(error))
            return
        problems.extend(f"{path}{name} is not in the table" for i, name in enumerate(names) if i not in at.values())
        for field in want.fields:
            if field.field_id in at:
                column = have.fields[at[field.field_id]]
                if field.required and isinstance(column.dataType, T.NullType):
                    problems.append(f"{path}{field.name} is required and always null")
                kind(column.dataType, field.field_type, f"{path}{field.name}")
            elif field.required:
                problems.append(f"{path}{field.name} is required and missing")

    def kind(have: T.DataType, want: I.IcebergType, path: str) -> None:
        match have, want:
            case T.StructType(), I.StructType():
                struct(have, want, f"{path}.")
            case T.ArrayType(), I.ListType():
                kind(have.elementType, want.element_type, f"{path}.element")
            case T.MapType(), I.MapType():
                kind(have.keyType, want.key_type, f"{path}.key")
                kind(have.valueType, want.value_type, f"{path}.value")
            case _ if not _fits(have, want):
                problems.append(f"{path} is {have.simpleString()} and does not fit in {want} without loss")

    struct(source, schema.as_struct(), "")
    if problems:
        raise SchemaMismatch("the DataFrame does not fit the table", columns="; ".join(problems))


def _fits(have: T.DataType, want: I.IcebergType) -> bool:
    match have, want:
        case T.NullType(), _:
            return True
        case T.DecimalType(), I.DecimalType():
            return have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale
    return isinstance(have, _FITS.get(type(want), ()))


def conform(columns: Sequence[Column], source: T.StructType, schema: Schema, case_sensitive: bool) -> list[Column]:
    """Return one column for each field of *schema*, typed as the table is, struct fields under file names with ids.

    Args:
        columns: One for each field of *source*.
        source: A schema that passed :func:`check_fits`.
        schema: Without arrays and maps.
        case_sensitive: As given to :func:`check_fits`.

    A row with null in a required field fails the job when it is reached.
    """
    safe = file_schema(schema)

    def value(column: Column, have: T.DataType, want: I.IcebergType, path: str) -> Column:
        if not isinstance(want, I.StructType) or not isinstance(have, T.StructType):
            return column
        at = pick(have.fieldNames(), want, case_sensitive)
        parts = []
        for field in want.fields:
            if field.field_id not in at:
                parts.append(F.lit(None).cast(spark_type(field.field_type)).alias(field.name))
                continue
            part = have.fields[at[field.field_id]]
            inner = child(column, have, at[field.field_id])
            parts.append(required(inner, part, field, path, column).alias(field.name))
        return F.when(column.isNotNull(), F.struct(*parts))

    def required(
        column: Column, have: T.StructField, want: I.NestedField, path: str, parent: Column | None = None
    ) -> Column:
        path = f"{path}.{want.name}" if path else want.name
        result = value(column, have.dataType, want.field_type, path)
        if not want.required or (not have.nullable and parent is None):
            return result
        missing = column.isNull() if parent is None else column.isNull() & parent.isNotNull()
        return F.when(missing, F.raise_error(F.lit(f"null in required column {path}"))).otherwise(result)

    at = pick(source.fieldNames(), schema.as_struct(), case_sensitive)
    result = []
    for field, safe_field in zip(schema.fields, safe.fields, strict=True):
        # What was checked for null may be null to Spark still, and a cast to what may not be null is refused.
        kind = nullable(spark_type(safe_field.field_type))
        if field.field_id in at:
            position = at[field.field_id]
            column = required(columns[position], source.fields[position], field, "").cast(kind)
        else:
            column = F.lit(None).cast(kind)
        result.append(column.alias(safe_field.name, metadata={FIELD_ID: field.field_id}))
    return result
