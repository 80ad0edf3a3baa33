"""How workers talk."""
