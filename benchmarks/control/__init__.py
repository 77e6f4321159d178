"""What deciding costs: the scheduler, the controller, a directive's way."""
