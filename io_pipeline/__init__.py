"""The feed: arrays in files, block by block (array_files.py), and pipes of samples in batches (feed/)."""
