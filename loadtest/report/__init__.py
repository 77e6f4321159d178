"""From records to numbers, verdict, plots and report."""
