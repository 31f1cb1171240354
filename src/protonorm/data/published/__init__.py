"""Published picture sets: downloaded, prepared from their official archives, and loaded."""
