"""Requests that schemathesis makes from Iceberg's specification: none may end in a server error, or in a traceback.

    make rest-fuzz SPEC=rest-catalog-open-api.yaml ARGS="--seed 7 --examples 1000"

The specification is the file ``open-api/rest-catalog-open-api.yaml`` of Iceberg's sources.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rest.kit import SCHEMA, served

_PROGRAM = "schemathesis==4.32.5"
_CONFIGURATION = """\
[parameters]
"path.prefix" = "shop"
"path.namespace" = ["db", "other"]
"path.table" = ["t", "u"]
"path.view" = ["v", "t"]
"""
"""Half of the requests would else name a catalog that is not there."""


def main() -> int:
    """Return 1 if a request ended in an error of the server, or if the server did not end well."""
    parser = argparse.ArgumentParser(prog="python -m tests.rest.specified", description=__doc__)
    parser.add_argument("specification", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="of every choice")
    parser.add_argument("--examples", type=int, default=100, help="requests of each route, at least")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coord-rest-") as folder, served() as server:
        client = server.client()
        for namespace in ("db", "other"):
            client.create_namespace(namespace)
            for name in ("t", "u"):
                client.create_table((namespace, name), SCHEMA)
        configuration = Path(folder, "schemathesis.toml")
        configuration.write_text(_CONFIGURATION, encoding="utf-8")
        command = [
            *("uv", "tool", "run", "--from", _PROGRAM, "schemathesis", "--config-file", str(configuration)),
            *("run", str(given.specification), "--url", server.url, "--checks", "not_a_server_error"),
            *("--max-examples", str(given.examples), "--seed", str(given.seed)),
        ]
        done = subprocess.run(command, check=False)
        server.end()
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
