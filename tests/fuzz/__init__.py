"""Coverage-guided fuzzing: targets, what runs them with atheris, and what replays kept inputs.

    python tests/fuzz/run.py [TARGET ...] --seconds 60

A target is a module of `targets`. Its seeds are in corpus/TARGET; inputs that once failed are in
found/TARGET. test_fuzz.py replays both without atheris, so that what was fixed stays fixed.
"""
