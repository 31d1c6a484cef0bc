"""Locks in ZooKeeper: sequential nodes in Hive's layout."""
