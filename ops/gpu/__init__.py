"""How a GPU does it."""
