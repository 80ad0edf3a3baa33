"""How a CPU does it: generated kernels, loop nests, and libraries."""
