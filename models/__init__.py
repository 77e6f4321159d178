"""The demonstration model: a small Llama that continues fairy tales, and the scripts that made and measured it."""
