"""Reads a table's files with code that shares nothing with the product, and says what is wrong in its metadata.

``observed`` reads files, and makes of them the ``state`` that a table is in; ``metadata`` checks them.
"""
