"""Several sets, our drafters and the peers: replayed, summed up, drawn."""
