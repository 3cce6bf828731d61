"""From a chat to tokens and back: tokenizers, templates, formats of answers, grammars."""
