"""Components that several algorithms share."""
