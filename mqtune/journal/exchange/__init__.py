"""Data beside the journals on a server: the fleet's register, output, code and local tasks."""
