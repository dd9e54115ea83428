"""The tables of a journal: keys, rows and what they mean."""
