"""Locks of tables that move between the metastore and ZooKeeper, and the registry of the clients that are ready."""
