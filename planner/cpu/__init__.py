"""What a CPU makes of a graph: kernels, and what they need."""
