"""The process that sends the requests, and how it is driven."""
