"""Operations on a table as the bag of its rows, and what each of them means. Pure: it reads no file."""
