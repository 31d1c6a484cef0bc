"""An oracle of rows: random programs on one table, by clients that see it late, held against a model of its rows.

``model`` is the table as rows and ``operations`` what each call means: both pure. ``program`` draws programs as data,
``run`` performs them, ``readers`` are three readers that share no code with us, and ``metadata`` holds a table's files
against each other. ``python -m commit_coord.testing.rows --help`` (``make rows``).
"""
