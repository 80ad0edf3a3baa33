"""Who decides: passes Graph -> Graph, the Plan, its id, caches, and explanations."""
