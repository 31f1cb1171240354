"""The round loop and what happens at a client, against the protocols alone."""
