"""Tables whose new files lie where their catalog allows it; see :mod:`commit_coord.iceberg.storage`."""

from __future__ import annotations

from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import LocationProvider

from commit_coord.iceberg.storage import data_places


class PlacedTable(Table):
    """A table of which PyIceberg's code asks where a new file goes."""

    def location_provider(self) -> LocationProvider:
        """Return what places new files."""
        return data_places(self.metadata, self.io.properties)


class CoordinatedStagedTable(PlacedTable, StagedTable):
    """A table that does not exist yet."""
