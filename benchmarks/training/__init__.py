"""Real trainings with PyTorch, scikit-learn and others: plain functions, the lines that they leave, and the scripts that tune them."""
