"""The demonstration model, shapes of larger ones, and a script that makes a checkpoint of a package."""
