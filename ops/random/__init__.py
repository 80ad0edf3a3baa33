"""Random numbers (`ost.random`) and their distributions."""
