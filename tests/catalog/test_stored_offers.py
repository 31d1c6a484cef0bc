"""The files of offers are where the table's files are, whatever its location is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from commit_coord.catalog.metastore.offers import StoredOffers

NAMES = ["t", "a b", "%41", "50%", "ü", "a;b", "x=1", "c:d"]


@pytest.mark.parametrize("scheme", ["file://", "file:", ""])
@pytest.mark.parametrize(
    "kind, name",
    [
        *((PyArrowFileIO, name) for name in NAMES),
        *((FsspecFileIO, name) for name in (*NAMES, "a#b", "a?b")),  # with PyArrow no table can be there
    ],
)
def test_what_was_written_is_read_and_deleted(tmp_path: Path, kind: type[FileIO], name: str, scheme: str) -> None:
    folder = f"{tmp_path}/{name}/metadata"
    offers = StoredOffers(lambda _: kind({}), SimpleNamespace(compare_and_set=lambda: True))
    location = f"{scheme}{folder}/r.offer.json"
    assert [None] == list(offers.read([location]))
    offers.write({location: b"offer"})
    assert [b"offer"] == list(offers.read([location]))
    assert Path(folder, "r.offer.json").read_bytes() == b"offer"
    offers.delete([location])
    offers.delete([location])
    assert [None] == list(offers.read([location]))
