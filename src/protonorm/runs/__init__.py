"""Run folders: layout, schema, writing, reading and archiving."""
