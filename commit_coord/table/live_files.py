"""Which files a table needs."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.iceberg import manifest_list


def live_among(paths: Iterable[str], io: FileIO, snapshots: Iterable[Snapshot]) -> list[str]:
    """Return those of *paths* that are data files of one of *snapshots*. All their manifests are read, each once."""
    wanted = set(paths)
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in snapshots
        for manifest in manifest_list.read(io, snapshot.manifest_list)
        if manifest.content == ManifestContent.DATA
    }

    def found(manifest: ManifestFile) -> set[str]:
        return wanted & {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}

    return sorted(set().union(*ExecutorFactory.get_or_create().map(found, manifests.values())))
