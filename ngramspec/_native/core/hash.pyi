# The seed of hashes, for other native modules; nothing for Python.
