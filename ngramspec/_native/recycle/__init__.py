"""recycle: SuccessorPool and the drafter that reads and fills it."""
