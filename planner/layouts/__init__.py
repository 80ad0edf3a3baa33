"""The search for layouts: ways to run a node, what they cost, and the cheapest choice of all."""
