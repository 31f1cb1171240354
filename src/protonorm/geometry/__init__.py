"""Mathematics of the paper as functions on (K, d) tensors: prototypes, their alignment and its energy."""
