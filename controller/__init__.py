"""The cluster's precision controller: records, policies, guards, control loop and the protocol of directives."""
