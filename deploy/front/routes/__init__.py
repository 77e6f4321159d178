"""Routes beside those that generate: vectors, pages, the description of all, and which web pages may ask."""
