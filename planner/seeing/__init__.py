"""Plans for people: tables, sources, pictures."""

from . import explain, picture, python_source, timeline, why  # noqa: F401  (what plans do)
