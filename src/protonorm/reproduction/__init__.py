"""Names for tables of your own; the code that reproduces tables lies beside the library, in `experiments`."""
