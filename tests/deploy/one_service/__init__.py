"""Tests that ask one running service; a package, so that it starts once for all of them and ends before others start."""
