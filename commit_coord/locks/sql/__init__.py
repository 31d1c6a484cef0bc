"""Locks in a SQL database: SQLite for one host, PostgreSQL for several."""
