"""WHERE clauses: what they say of each row, and which files and partitions need not be looked at.

A clause is bound to a schema first: names become columns, and each literal becomes a value of the column that it meets.
What is bound has SQL's three truth values. NULL compares as unknown. NaN equals itself and is greater than every other
number, as in Spark, DuckDB and PostgreSQL. A number that the column's type does not have compares by its size:
``n < 2.5`` and ``n = 3000000000`` are what they are in arithmetic; nothing is rounded to fit. With a ``float`` or
``double`` column a literal is a double, as in Spark: the ``float`` that is nearest to 0.1 is greater than 0.1.

``columns`` finds the columns that a statement names, ``binding`` makes ``conditions`` of a clause, ``truth`` evaluates
them for rows, and ``filters`` makes PyIceberg's row filters of them.
"""
