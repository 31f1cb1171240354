"""Parsing, validation and description of experiment settings."""
