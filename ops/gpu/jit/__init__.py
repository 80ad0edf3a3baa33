"""Expressions to CUDA C++ to machine code."""
