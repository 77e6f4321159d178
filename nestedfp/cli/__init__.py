"""The command ``nestedfp``: a file for each of its sub-commands, which hold arguments and output only."""
