"""Loop nests over a grid of threads."""
