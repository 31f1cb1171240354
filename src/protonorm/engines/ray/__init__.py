"""Clients in actors on a Ray cluster, whose nodes need share no files: the engine, its actors, and data on nodes."""
