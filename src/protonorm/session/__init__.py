"""An experiment from start to end."""
