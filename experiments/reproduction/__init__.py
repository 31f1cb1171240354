"""Reproduction of the paper's tables and figures: what to run, its state, and what is written."""
