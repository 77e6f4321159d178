"""How far answers are from exact ones: the text, the mixtures of exact and fast positions, the statistics."""
