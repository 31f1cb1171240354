"""Round loop, client steps and server steps, written against the protocols of `core`."""
