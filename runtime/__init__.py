"""Who executes: workers, engines, communicators."""
