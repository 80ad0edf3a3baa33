"""Control flow and callbacks: operations that hold graphs or functions."""
