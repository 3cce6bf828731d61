"""The byte-level BPE tokenizer: train it, load it, or read it back out of a GGUF file.

A name has the same tokens wherever it stands: no token holds a letter and what is around the word.
So the model copies tokens and need not know how they are spelt.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What llama.cpp splits text by for the pre-tokenizer "gpt-2", and what no token may cross inside.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RARE = 1e-4  # share of all tokens
INSIDE = (r"^ (?=[\p{L}\p{N}_])", r"_+", r"\p{N}")


def _splitting() -> pre_tokenizers.PreTokenizer:
    """Return what splits text for training; later GPT2 suffices: no merge crosses the rest."""
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in (GPT2, *INSIDE)]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, last])


def _dress(bpe: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], size: int = 4096) -> Tokenizer:
    """Train a byte-level BPE of `size` tokens; the special tokens get ids 0, 1 and 2."""
    tokenizer = _dress(models.BPE())
    running = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = _splitting()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = running
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


def rare_pieces(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the tokens that these texts hardly have, as text.

    Special tokens and parts of a character are left out.
    """
    counts = Counter(token for text in texts for token in tokenizer.encode(text).ids)
    least = counts.total() * RARE
    rare = (index for index in range(tokenizer.get_vocab_size()) if counts[index] < least)
    pieces = (tokenizer.decode([index]) for index in rare)
    return [piece for piece in pieces if piece and "\ufffd" not in piece]


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
