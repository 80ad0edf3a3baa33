"""Passes that only hold for GPUs."""
