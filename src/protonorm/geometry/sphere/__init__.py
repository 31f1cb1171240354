"""Repelling points on the unit sphere: energy, forces and solvers."""
