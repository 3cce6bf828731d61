"""The seed of the hashes that tables are looked up by."""

from os import urandom

HASH_SEED = int.from_bytes(urandom(8), "little") | 1
