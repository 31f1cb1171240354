"""Published image datasets: downloaded, prepared from their official archives, and loaded."""
