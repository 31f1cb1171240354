"""Sessions: building, running and comparing experiments from start to end."""
