"""One attempt on a worker: its slot, its process, and the orders to it."""
