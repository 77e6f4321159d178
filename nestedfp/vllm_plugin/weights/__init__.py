"""The quantisation method: which layers are nested, how they load and compute."""
