"""Real prompts on a real model, without drafts and with each drafter: equal texts, and times."""
