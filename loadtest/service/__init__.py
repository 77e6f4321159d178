"""The service under test: its process and admin routes."""
