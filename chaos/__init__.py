"""The fault campaign: parts of a service are killed and stopped under a steady load; the cost of that is measured."""
