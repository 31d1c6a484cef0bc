"""What HELP answers: the form of each statement, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

STATEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "HELP": "list the statements",
        "SHOW DATABASES [LIKE 'pattern']": "list the databases",
        "SHOW TABLES [IN database] [LIKE 'pattern']": "list the tables of a database",
        "DESCRIBE [EXTENDED] table": "show columns and partitions; EXTENDED: also location, snapshot and properties",
        "SELECT columns | count(*) FROM table [WHERE ...] [LIMIT n]": "read rows, or count them",
        "INSERT INTO | OVERWRITE table [PARTITION (...)] [(columns)] VALUES ... | SELECT ...": "write rows",
        "UPDATE table SET column = value, ... [WHERE ...]": "change rows",
        "DELETE FROM table [WHERE ...]": "delete rows",
        "TRUNCATE [TABLE] table [PARTITION (...)]": "delete all rows of a table or partition",
        "CREATE TABLE [IF NOT EXISTS] table (columns) [PARTITIONED BY (...)] ...": "create a table",
        "DROP TABLE [IF EXISTS] table [PURGE]": "drop a table; PURGE: and delete its files",
        "CREATE DATABASE [IF NOT EXISTS] database [COMMENT ...] [LOCATION ...]": "create a database",
        "DROP DATABASE [IF EXISTS] database [CASCADE]": "drop a database; CASCADE: and its tables",
        "ALTER TABLE table RENAME TO name": "rename a table",
        "ALTER TABLE table ADD | REPLACE COLUMNS (columns)": "add columns, or replace all of them",
        "ALTER TABLE table CHANGE column name type [FIRST | AFTER column]": "rename, retype or move a column",
        "ALTER TABLE table SET | UNSET TBLPROPERTIES (...)": "set or remove properties",
        "ALTER TABLE table SET SERDE | SERDEPROPERTIES | FILEFORMAT ...": "set Hive's properties or the file format",
        "ALTER TABLE table SET PARTITION SPEC (...)": "change how new rows are partitioned",
        "ALTER TABLE table ADD | DROP | TOUCH PARTITION (...)": "add files of a partition, delete or touch it",
        "ALTER TABLE table [PARTITION (...)] CONCATENATE": "merge small files",
        "ALTER TABLE table CREATE | DROP BRANCH | TAG name": "manage branches and tags",
        "ALTER TABLE table EXECUTE EXPIRE_SNAPSHOTS | ROLLBACK ...": "expire snapshots, or return to one",
        "SHOW LOCKS [table [PARTITION (...)] | DATABASE database] [EXTENDED]": "list held locks",
        "LOCK TABLE table [PARTITION (...)] | DATABASE database SHARED | EXCLUSIVE": "lock until UNLOCK",
        "UNLOCK TABLE table [PARTITION (...)] | DATABASE database": "release what LOCK has locked",
        "SHOW LEASE [* | table [PARTITION (...)], ...]": "list leases",
        "DROP FORCE LEASE * | table [PARTITION (...)], ...": "end leases by force",
        "EXPLAIN [FORMATTED] LOCKS statement": "show which locks a statement would take",
    }
)
