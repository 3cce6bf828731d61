"""Drafter: sources behind one interface, slots, one propose and one accept."""
