"""An example writer: appends rows to one table, again and again, together with any number of others.

Its metrics are on port 9108. ROWS says how many rows it appends.
"""

import os
import socket

import pyarrow as pa
from prometheus_client import start_http_server

import commit_coord

start_http_server(9108)
catalog = commit_coord.load_catalog("local")
catalog.create_namespace_if_not_exists("shop")
schema = pa.schema([("writer", pa.string()), ("number", pa.int64())])
table = catalog.create_table_if_not_exists("shop.sales", schema=schema)
for number in range(int(os.environ.get("ROWS", "20"))):
    table.append(pa.table({"writer": [socket.gethostname()], "number": [number]}, schema=schema))
    print(f"{socket.gethostname()}: row {number} is in the table", flush=True)
