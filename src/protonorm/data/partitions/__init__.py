"""Ways to assign samples to clients."""
