"""Sorting: keys, networks for short lines, radix sort for long ones."""
