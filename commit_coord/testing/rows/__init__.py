"""An oracle of rows: random programs on one table, by clients that see it late, held against a model of its rows.

``model`` is the table as rows, and what each operation on it means: pure. ``draw`` draws programs; ``program`` has them
as data. ``read`` reads a table's files, and has three readers that share no code with us. ``run`` performs programs and
judges each step. ``python -m commit_coord.testing.rows --help`` (``make rows``).

``kept`` keeps the tables that programs leave behind for other ``engines`` to read; ``far`` has clients on servers, in
processes of their own; ``spark`` has one on Spark.
"""
