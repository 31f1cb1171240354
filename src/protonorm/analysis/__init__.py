"""Analysis of recorded runs: comparisons, statistics and communication."""
