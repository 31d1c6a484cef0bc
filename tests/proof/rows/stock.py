"""What PyIceberg alone makes of an operation."""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from commit_coord.testing.table_files.observed import Files, Observed
from tests.proof.rows.clients import quiet
from tests.proof.rows.doing import NAMESPACE, Doing
from tests.proof.rows.leftovers import on_disk
from tests.proof.rows.model.operations import Recreate, Single
from tests.proof.rows.program import stock_call


def stock_error(operation: Single, head: Observed, folder: Path, *, anew: bool = False) -> str:
    """Return the name of the error by which PyIceberg refuses *operation* on a table as it is; "" if none.

    Args:
        operation: What is asked for.
        head: The table.
        folder: For what that takes.
        anew: On a table of the same columns and rows that was just made: nothing has ever been changed in it.
    """
    asked = stock_call(operation)
    if asked is None or isinstance(asked, Recreate):
        return ""
    before = on_disk(head)
    catalog = SqlCatalog("shadow", uri="sqlite:///:memory:", warehouse=f"file://{folder}/shadow")
    try:
        catalog.create_namespace(NAMESPACE)
        table = catalog.register_table((NAMESPACE, "shadow"), head.location)
        with quiet():
            if anew:
                rows = table.scan().to_arrow()
                table = catalog.create_table((NAMESPACE, "anew"), rows.schema)
                table.append(rows)
            Doing(folder, Files())(asked, table)
    except Exception as error:  # noqa: BLE001 - that is what is asked for
        return type(error).__name__
    finally:
        catalog.close()
        for path in on_disk(head) - before:
            os.unlink(path)
    return ""
