"""The control loop: from what is known of the replicas to the directive in force. Pure."""
