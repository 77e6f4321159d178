"""The demonstration model: a small Llama that continues fairy tales; shapes of others; and a script that makes a checkpoint of a package."""
