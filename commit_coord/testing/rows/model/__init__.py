"""A table as the bag of its rows, operations on it, and what each of them means. Pure: it reads no file."""
