"""Routes beside those that generate: pages, and the forms of an answer."""
