"""The parts of the catalog over a Hive Metastore.

Each module is one thing that the catalog does, with what it needs given to it: the metastore's client, the lock
managers, the metadata reader. ``catalog/hive.py`` puts them together; so does the simulator, with its own services.
"""
