"""Adapters to other libraries, each with an extra of its name; nothing else in mqtune imports them before they are asked for."""
