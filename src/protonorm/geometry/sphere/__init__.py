"""Points that repel each other on the unit sphere: energy, forces and solvers."""
