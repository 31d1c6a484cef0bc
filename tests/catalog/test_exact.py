"""PyIceberg is mended in every process that loads this package, once, however it came to be loaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow as reader
import pytest
from pyiceberg.expressions import LessThan
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StructType

from commit_coord.iceberg import exact
from commit_coord.iceberg.mends import Mends
from tests.catalog.kit import Kit

LISTS = ListType(3, StructType(NestedField(4, "x", LongType())), element_required=False)
SCHEMA = Schema(NestedField(1, "f", DoubleType()), NestedField(2, "l", LISTS))
IN_ORDER = {
    "this package first": "import commit_coord, pyiceberg.io.pyarrow as reader",
    "PyIceberg first": "import pyiceberg.io.pyarrow as reader, commit_coord",
}


def asked(program: str, *arguments: str) -> str:
    """Return what *program* writes in a new process."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_table_that_is_unpickled_in_a_new_process_deletes_what_matches_and_keeps_null(
    tmp_path: Path,
) -> None:
    kit = Kit(tmp_path, "lease")
    table = kit.table(schema=SCHEMA)
    arrow = pa.schema([("f", pa.float64()), ("l", pa.list_(pa.struct([("x", pa.int64())])))])
    table.append(pa.Table.from_pylist([{"f": 1.0}, {"f": 5.0}, {"f": -0.0}], schema=arrow))
    with table.update_schema() as update:
        update.add_column(("l", "y"), LongType())
    pickled = tmp_path / "table"
    pickled.write_bytes(pickle.dumps(table.refresh()))
    asked("import pickle, sys; pickle.load(open(sys.argv[1], 'rb')).delete('f in (0.0, 5.0)')", str(pickled))
    assert table.refresh().scan().to_arrow().to_pylist() == [{"f": 1.0, "l": None}]


@pytest.mark.parametrize("order", list(IN_ORDER))
def test_filters_of_arrow_are_exact_whatever_was_loaded_first(order: str) -> None:
    assert (
        asked(f"{IN_ORDER[order]}; print(hasattr(reader._ConvertToArrowExpression.visit_not_in, '__wrapped__'))")
        == "True"
    )


def test_arrow_is_not_loaded_before_it_is_used() -> None:
    assert asked("import commit_coord, sys; print('pyarrow' in sys.modules)") == "False"


def test_a_plain_catalog_of_the_process_reads_exactly(tmp_path: Path) -> None:
    """Doubles of partitions, for one, which PyIceberg's decoder rounds to 32 bits."""
    program = """
import sys, pyarrow as pa, commit_coord
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField
catalog = SqlCatalog("plain", uri=f"sqlite:///{sys.argv[1]}/c.db", warehouse=f"file://{sys.argv[1]}/w")
catalog.create_namespace("db")
spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
table = catalog.create_table("db.t", Schema(NestedField(1, "x", DoubleType())), partition_spec=spec)
table.append(pa.table({"x": [0.1]}))
print(table.scan("x == 0.1").to_arrow().num_rows)
"""
    assert asked(program, str(tmp_path)) == "1"


def test_filters_are_exact_before_arrow_is_loaded() -> None:
    program = """
import sys, commit_coord
from pyiceberg.expressions import LessThan
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField
matches = expression_evaluator(Schema(NestedField(1, "n", IntegerType())), LessThan("n", 3_000_000_000), True)
print(matches(Record(None)), "pyiceberg.io.pyarrow" in sys.modules)
"""
    assert asked(program) == "False False"


def test_threads_may_import_for_the_first_time_at_once() -> None:
    """A service imports ``commit_coord``, which loads nothing, and its threads begin to work at the same moment."""
    program = """
import importlib, random, sys, threading, commit_coord
theirs = ["catalog", "expressions", "io.pyarrow", "manifest", "schema", "table"]
ours = ["CommitConflict", "HiveLease", "HiveLeases", "LockMode", "NOTHING", "load_catalog"]
uses = [(importlib.import_module, f"pyiceberg.{name}") for name in theirs]
uses += [(lambda name: getattr(commit_coord, name), name) for name in ours]
random.Random(int(sys.argv[1])).shuffle(uses)
ready, failed = threading.Barrier(len(uses)), []

def run(use, name):
    ready.wait()
    try:
        use(name)
    except BaseException as error:
        failed.append(f"{name}: {error!r}")

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=run, args=one) for one in uses]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"""
    for seed in range(2):
        assert asked(program, str(seed)) == "[]"


@pytest.mark.parametrize("theirs", ["expressions.visitors", "io.pyarrow"])
def test_the_import_hook_waits_for_no_other_thread(theirs: str) -> None:
    """It imports nothing of PyIceberg that the module that it follows has not imported."""
    program = f"""
import sys, pyiceberg.{theirs}
before = set(sys.modules)
import commit_coord, commit_coord.iceberg.exact
print([name for name in sys.modules if name.startswith("pyiceberg") and name not in before])
"""
    assert asked(program) == "[]"


def test_nothing_is_mended_twice() -> None:
    before = {name: getattr(reader._ConvertToArrowExpression, name) for name in ("visit_in", "visit_not_in")}
    bind, projected = LessThan.bind, reader.ArrowProjectionVisitor.struct
    ready = Barrier(4)

    def mend() -> None:
        ready.wait()
        exact.mend(reader)

    threads = [Thread(target=mend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == {name: getattr(reader._ConvertToArrowExpression, name) for name in before}
    assert (bind, projected) == (LessThan.bind, reader.ArrowProjectionVisitor.struct)


def test_a_name_that_is_gone_leaves_everything_as_it_was() -> None:
    class Theirs:
        def here(self) -> str:
            return "theirs"

    mends = Mends()
    mends.wrap(Theirs, "here", lambda real: lambda self: f"mended {real(self)}")
    with pytest.raises(AttributeError, match="gone"):
        mends.wrap(Theirs, "gone", lambda real: real)
    assert Theirs().here() == "theirs"
    mends.make()
    assert Theirs().here() == "mended theirs"


def test_two_mends_of_one_function_are_both_made() -> None:
    class Theirs:
        def value_of(self, value: Any) -> str:
            return f"theirs {value}"

    mends = Mends()
    for name in ("a", "b"):

        def saying(real: Any, name: str = name) -> Any:
            return lambda self, value: f"{name} {real(self, value)}"

        mends.wrap(Theirs, "value_of", saying)
    mends.make()
    assert Theirs().value_of(1) == "b a theirs 1"
