"""A client of many streams that costs next to nothing."""
