"""Workers that are processes: how they start, what they are told, how they end."""
