"""Results of experiments: reading, exporting and displaying them."""
