"""A Hive Metastore client for the other layers: pooled, bounded in time, with fail-over.

The Thrift bindings are those that PyIceberg carries (``hive_metastore``): made from Hive 4, so a table that is read and
written back keeps the fields that ``hmsclient``'s bindings of Hive 2.3 do not know, and the errors are the ones that
PyIceberg's ``HiveCatalog`` catches.
"""
