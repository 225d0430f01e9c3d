"""The driver's side of running trials somewhere."""
