"""What only timing can decide."""
