"""What searchers are compared on: functions and tables of learning curves, and the clock that peers without one get."""
