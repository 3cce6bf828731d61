"""Files: what they hold, byte by byte, and how they are checked."""
