"""From a trial's pipe to the journal: its reports, and how its attempt ended."""
