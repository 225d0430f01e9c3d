"""A fleet of a thousand workers without their processes, and the drivers that use it."""
