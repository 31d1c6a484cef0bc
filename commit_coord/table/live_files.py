"""Which files a table needs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.iceberg import manifest_list


def live_among(paths: Iterable[str], io: FileIO, snapshots: Iterable[Snapshot]) -> list[str]:
    """Return those of *paths* that are data files of one of *snapshots*. All their manifests are read, each once.

    A file counts by whatever spelling of its location.
    """
    wanted = {canonical(path): path for path in paths}
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in snapshots
        for manifest in manifest_list.read(io, snapshot.manifest_list)
        if manifest.content == ManifestContent.DATA
    }

    def found(manifest: ManifestFile) -> set[str]:
        return wanted.keys() & {canonical(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(io)}

    there = set[str]().union(*ExecutorFactory.get_or_create().map(found, manifests.values()))
    return sorted(wanted[path] for path in there)


_FAMILY = {"s3a": "s3", "s3n": "s3"}


def canonical(location: str) -> str:
    """Return one spelling for all that engines have of *location*: ``/a`` and ``file:///a``, ``s3a`` and ``s3``.

    ``//``, ``/./`` and ``/../`` mean something in a file system alone: in an object store they name another object.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return re.sub("/{2,}", "/", posixpath.normpath(rest if separator else location.removeprefix("file:")))
    return f"{_FAMILY.get(scheme, scheme)}://{rest}"
