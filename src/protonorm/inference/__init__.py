"""Trained clients: loading and prediction."""
