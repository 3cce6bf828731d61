"""The native modules, compiled from ext/ngramspec/_native: a folder per subsystem."""
