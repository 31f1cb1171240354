"""Ray backend: the engine, its actors, and data on nodes, which need no shared file system."""
