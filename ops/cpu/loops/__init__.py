"""Loop nests around expressions: flat ones, those in stages, and how threads share them."""
