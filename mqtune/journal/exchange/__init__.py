"""What drivers, workers and people exchange on a server beside the journals."""
