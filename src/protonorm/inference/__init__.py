"""Trained clients: load them and predict."""
