"""Dead letters: their blocks, and the index of each group."""
