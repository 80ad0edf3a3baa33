"""How a pipe runs, decided while it runs: measured, solved, verified, remembered. No bit depends on it."""
