"""Measure where exchange pays: the runs of docs/exchange.md, and its tables from what has been run."""
