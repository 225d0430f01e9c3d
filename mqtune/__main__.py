"""Runs the command line for ``python -m mqtune``."""

from mqtune.cli import main

if __name__ == "__main__":
    main()
