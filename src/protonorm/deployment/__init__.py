"""A real federation between organisations: the agreement, what travels, and who plays which part."""
