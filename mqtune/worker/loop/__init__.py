"""A worker's loop, and what puts it together and shuts it down."""
