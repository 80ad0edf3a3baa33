"""Pipes: samples from a source, through stages, in batches; by threads, and always the same ones."""
