"""What workers did, counted, added up and shown."""
