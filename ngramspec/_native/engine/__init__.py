"""The engine's step: slots, what a decode holds, proposing and verifying for all of them."""
