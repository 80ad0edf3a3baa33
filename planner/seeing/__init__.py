"""Plans for people: tables, sources, pictures."""

from . import explain, picture, source, timeline, why  # noqa: F401  (what plans do)
