"""The paper's tables and figures, made again: cells to run, profiles of size, and what is written of them."""
