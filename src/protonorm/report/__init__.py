"""Figures and report pages, drawn from the records of runs alone."""
