"""What watches an experiment from within its driver."""
