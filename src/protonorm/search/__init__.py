"""Many runs to choose settings by: a grid of them, or a search."""
