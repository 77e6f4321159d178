"""The service under test: its process, settings and admin routes."""
