"""An oracle of rows: random programs on one table, by clients that see it late, held against a model of its rows.

``model`` says what each operation on a table's rows means: pure. ``draw`` draws programs; ``program`` has them as data.
``run`` performs programs and judges each step: ``commit_coord.testing.table_files`` reads a table's files, and ``read``
has three readers that share no code with us. ``python -m tests.proof.rows --help`` (``make rows``).

``kept`` keeps the tables that programs leave behind for other ``engines`` to read; ``far`` has clients on servers, in
processes of their own; ``spark`` has one on Spark.
"""
