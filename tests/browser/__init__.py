"""Tests of the page at /. A package, so that its fixtures end with it."""
