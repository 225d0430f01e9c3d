"""The rules by which a driver decides. They read the fold, and return actions."""
