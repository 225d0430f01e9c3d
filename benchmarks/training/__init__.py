"""Real trainings, the lines that they leave, and the scripts that tune them."""
