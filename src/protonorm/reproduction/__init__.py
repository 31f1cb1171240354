"""The paper's tables and figures made again: what to run, how it stands, and what is written of it."""
