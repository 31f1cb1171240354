"""Selection of settings by many runs: grid sweeps and hyperparameter search."""
