"""The parts of the scheduler: the requests' classes, and what it tells and is told."""
