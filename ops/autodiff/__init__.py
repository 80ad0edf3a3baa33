"""Transformations of graphs: reverse-mode gradients, forward-mode ones, and `vmap`."""
