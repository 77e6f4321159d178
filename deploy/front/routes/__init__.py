"""Routes beside those that generate: pages, tokens, and the forms of an answer."""
