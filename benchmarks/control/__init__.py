"""How long a directive takes."""
