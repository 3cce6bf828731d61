"""The byte-level BPE tokenizer: train it, load it, or read it back out of a GGUF file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _dress(bpe: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], size: int = 4096) -> Tokenizer:
    """Train a byte-level BPE of `size` tokens; the special tokens get ids 0, 1 and 2."""
    tokenizer = _dress(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def from_gguf(path: str) -> Tokenizer:
    """Rebuild the tokenizer from the vocabulary and merges stored in a GGUF file."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = _dress(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer from a `.gguf` file or from a `tokenizer.json`."""
    return from_gguf(path) if path.endswith(".gguf") else Tokenizer.from_file(path)


def main() -> None:
    """Train the tokenizer on the corpus and save it as JSON."""
    from corpus import load_corpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="tokenizer.json", help="file to write")
    parser.add_argument("--size", type=int, default=4096, help="number of tokens")
    options = parser.parse_args()
    corpus = load_corpus()
    tokenizer = train_tokenizer(corpus.modules, options.size)
    tokenizer.save(options.out)
    print(f"{options.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
