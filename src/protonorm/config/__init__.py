"""Settings to objects and back, and refusals in sentences."""
