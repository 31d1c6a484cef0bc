"""Locks in a SQL database: SQLite by default, PostgreSQL for more than one host."""
