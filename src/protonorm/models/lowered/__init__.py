"""Layers in the forms that a CPU computes fastest; see protonorm.models.lowering."""
