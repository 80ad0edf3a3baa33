"""Kernels of single operations: products, scans, gathers, searches, sorts."""
