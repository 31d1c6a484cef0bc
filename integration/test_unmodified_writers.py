"""Writers that know nothing of us, on one table of one metastore: what everything else here is compared with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from integration.conftest import Java, Metastore, Servers

pytestmark = [pytest.mark.jvm, pytest.mark.hms]

ROWS = pa.schema([("writer", pa.string()), ("number", pa.int64())])


@pytest.fixture(scope="module")
def baseline(servers: Servers) -> Metastore:
    """Hive Metastore 2.3.10 on Derby."""
    metastore: Metastore = servers.metastore()
    return metastore


def test_java_and_pyiceberg_read_each_others_rows(baseline: Metastore, java: Java) -> None:
    """INSERT, MERGE and DELETE of Spark SQL, and PyIceberg's append, in turn."""
    stock = load_catalog("stock", type="hive", uri=baseline.uri)
    stock.create_namespace("shop")
    table = stock.create_table("shop.sales", schema=ROWS)
    table.append(pa.table({"writer": ["python"], "number": [1]}, schema=ROWS))

    name = java.catalog(baseline)
    java.sql(f"INSERT INTO {name}.shop.sales VALUES ('java', 2), ('java', 3)")
    java.sql(
        f"MERGE INTO {name}.shop.sales t USING (SELECT 'merge' AS writer, 3 AS number) s ON t.number = s.number "
        "WHEN MATCHED THEN UPDATE SET writer = s.writer"
    )
    table.refresh()
    table.append(pa.table({"writer": ["python"], "number": [4]}, schema=ROWS))
    java.sql(f"REFRESH TABLE {name}.shop.sales")
    java.sql(f"DELETE FROM {name}.shop.sales WHERE number = 2")

    expected = [("merge", 3), ("python", 1), ("python", 4)]
    assert expected == sorted(java.sql(f"SELECT * FROM {name}.shop.sales"))
    scanned = stock.load_table("shop.sales").scan().to_arrow().to_pylist()
    assert expected == sorted((row["writer"], row["number"]) for row in scanned)
