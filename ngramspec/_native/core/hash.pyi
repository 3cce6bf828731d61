# Kernels for other native modules; nothing for Python.
