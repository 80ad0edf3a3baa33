"""The feed: sources, stages and their tuner. Today: arrays in files, block by block (files.py)."""
