"""Plans for people: tables, sources, pictures."""

from . import explain, picture, source, timeline  # noqa: F401  (what plans do)
