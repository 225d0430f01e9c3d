"""Functions and tables of learning curves for comparing searchers."""
