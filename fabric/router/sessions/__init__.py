"""Sessions, and the table of them."""
