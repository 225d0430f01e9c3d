"""A fleet of a thousand workers without their processes, and its drivers."""
