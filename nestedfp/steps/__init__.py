"""The precision of a step, from its costs and its requests' deadlines. Pure and standard library only."""
