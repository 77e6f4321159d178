"""The path from token to client, against other servers."""
