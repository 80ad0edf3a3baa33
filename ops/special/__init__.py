"""Special functions, by SciPy's names (`ost.special`)."""
