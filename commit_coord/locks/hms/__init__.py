"""Locks in a Hive Metastore: its own lock calls, names that its lock table can hold, guards."""
