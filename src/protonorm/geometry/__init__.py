"""The paper's mathematics as plain functions on (K, d) tensors: prototypes, their alignment, the energy behind it."""
