"""Functions of arrays: one file per kind, named as NumPy's reference groups them."""
