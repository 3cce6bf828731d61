"""The search for the drafter and sizes that suit recorded requests best."""
