"""Statistics files: counted, merged, written, and read back."""
