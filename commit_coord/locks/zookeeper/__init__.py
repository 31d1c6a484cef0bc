"""The ``zookeeper`` lock manager: locks are sequential nodes in Hive's layout."""
