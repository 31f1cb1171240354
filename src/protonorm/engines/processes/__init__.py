"""Clients in persistent worker processes: the engine, its workers, and what they tell each other."""
