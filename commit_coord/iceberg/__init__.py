"""Iceberg's files, read and written at a cost that does not grow with the table's history more than the format asks."""
