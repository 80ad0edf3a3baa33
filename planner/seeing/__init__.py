"""Plans for people: tables, sources, pictures."""
