"""The feed: arrays in files, block by block (files.py), and pipes of samples in batches (feed/)."""
