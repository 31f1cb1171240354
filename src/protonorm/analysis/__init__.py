"""Runs side by side: comparisons and communication."""
