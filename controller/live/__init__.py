"""The live driver: the only files of this package that do I/O."""
