"""From a user's arguments to the place of an experiment, before there is a driver."""
