"""Recorded requests: the file that a server writes, and every format that is read for a replay."""

from ngramspec.lab.recordings.lines import RecordedRequest

__all__ = ["RecordedRequest"]
