"""What every operation is made of: specs, layouts, indices, graphs, Terms and Arrays, and the registry."""
