"""What is decided: one pass a file, Graph -> Graph."""
