"""The driver's loop: wait for news, process them, answer requests, fill slots."""
