"""Train the embedded model, from weights that copy already or onwards from a GGUF file.

With every checkpoint it says how many held-out answers the model would give without a mistake, by
task: copying comes late and suddenly, and the loss does not show it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from batches import Batch, BatchStream, Looks, encode_sample, pad_batch
from corpus import load_corpus
from model import ModelConfig, TinyLlama, load_gguf
from tasks import TaskMaker
from tokenizer import load_tokenizer, rare_pieces
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm
from wiring import BEFORE, wired


@dataclass(frozen=True)
class Taught:
    """Heads of a layer that are taught to look at places of one kind (`copies.Found`).

    ahead: How many tokens after them to look instead.
    """

    layer: int
    heads: tuple[int, ...]
    kind: str = "copied"
    ahead: int = 0


# Layer 2 compares what was before. Layer 3 looks ahead: is what comes what is to be replaced? Later
# layers know more, such as what a name was called before.
TAUGHT = (
    Taught(2, (1, 2, 3, 4, 5, 7)),
    Taught(2, (0, 6), "marked"),
    Taught(3, (0, 1), ahead=1),
    Taught(3, (2,), ahead=2),
    Taught(3, (3,), ahead=3),
    Taught(3, (4, 5), ahead=4),
    Taught(4, (0, 1), "ended"),
    Taught(4, (2, 3, 4, 5)),
    Taught(4, (6, 7), "quoted"),
    Taught(5, (0, 1, 2, 3, 4, 5), "asked"),
    Taught(5, (0, 1, 2, 3, 4, 5), "back"),
    Taught(5, (0, 1, 2, 3, 4, 5), "within"),
    Taught(5, (6, 7), "cell"),
    Taught(6, (0, 1), "cell"),
    Taught(6, (0, 1), "resumed"),
    Taught(6, (2, 3, 4, 5, 6, 7), "same"),
    Taught(6, (2, 3, 4, 5, 6, 7), "put_in"),
    Taught(7, (0, 1, 2, 3, 4, 5), "put_in"),
)
APART = 16  # positions from one where these are taught to the next
UNSEEN = -1e9  # score of a place that is not to be looked at
MANY = {"copied", "same"}  # for nearly every token
EVERY = 4  # positions of these from one that is taught to the next; all would take much longer


@dataclass
class Progress:
    """What a resumed run needs to go on where it stopped."""

    step: int = 0
    pool: int = 0
    seconds: float = 0.0
    tokens: int = 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--init", default="", help="GGUF file to continue from")
    parser.add_argument("--tokenizer", default="", help="tokenizer.json or GGUF (default: --init)")
    parser.add_argument("--layers", type=int, default=9, help="of a model from scratch")
    parser.add_argument("--feed-forward", type=int, default=384, help="width of its inner layer")
    parser.add_argument("--out", default="checkpoint.pt", help="checkpoint file")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--minutes", type=float, default=80.0, help="time budget")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--compile", action="store_true", help="compile the layers: needs g++")
    parser.add_argument("--rate", type=float, default=0.005, help="peak learning rate of Muon")
    parser.add_argument("--hold", type=float, default=0.5, help="share of time before the decay")
    parser.add_argument("--budget", type=int, default=3072, help="padded tokens in a batch")
    parser.add_argument("--context", type=int, default=1536, help="longest conversation")
    parser.add_argument("--first", type=int, default=60, help="longest copy at the beginning")
    parser.add_argument("--last", type=int, default=600, help="longest copy at the end")
    parser.add_argument(
        "--grow", type=float, default=0.6, help="share of time, at the end, in which copies grow"
    )
    parser.add_argument("--plain", type=float, default=0.03, help="share of plain text")
    parser.add_argument("--plain-weight", type=float, default=0.1, help="weight of its tokens")
    parser.add_argument(
        "--looking", type=float, default=0.5, help="weight of where heads are taught to look"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights")
    parser.add_argument("--save-minutes", type=float, default=5.0, help="checkpoint interval")
    parser.add_argument("--samples", type=int, default=12, help="held-out answers of each task")
    return parser.parse_args()


class Optimizers:
    """Muon for the matrices, AdamW for embeddings and norms, under one schedule."""

    def __init__(self, model: TinyLlama, rate: float, hold: float) -> None:
        """Split the parameters by kind."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if name.startswith("blk.") and p.ndim == 2]
        others = [p for name, p in named if not (name.startswith("blk.") and p.ndim == 2)]
        self.muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, momentum=0.95)
        self.adam = torch.optim.AdamW(others, lr=rate / 8, betas=(0.9, 0.98), weight_decay=0.0)
        self.rate, self.hold = rate, hold

    def step(self, progress: float, count: int) -> None:
        """Warm up over 30 steps, hold, then fall linearly to zero as `progress` reaches one."""
        scale = min(1.0, (1.0 - progress) / (1.0 - self.hold), (count + 1) / 30)
        for optimizer, rate in ((self.muon, self.rate), (self.adam, self.rate / 8)):
            for group in optimizer.param_groups:
                group["lr"] = rate * max(scale, 0.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return both states for a checkpoint."""
        return [self.muon.state_dict(), self.adam.state_dict()]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Load what `state` returned."""
        self.muon.load_state_dict(states[0])
        self.adam.load_state_dict(states[1])


def losses(
    model: TinyLlama, batch: Batch, device: str, plain: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy on the assistant's tokens, and the `look_loss` of those taught.

    Both are computed under bfloat16. Plain text counts `plain` times: a token of it loses sixty
    times what one of an answer does, and what it asks for would hide what answers ask for.
    """
    tokens, targets = batch.tokens.to(device), batch.targets.to(device)
    compared: list[tuple[Tensor, Tensor]] = []
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        hidden = model.hidden(tokens, compared)
        judged = targets >= 0
        logits = model.logits(hidden[judged])
        first = int(torch.randint(EVERY, ()))
        looks = {
            kind: all_of if kind not in MANY else all_of.some(EVERY, first)
            for kind, all_of in batch.looks.items()
        }
        looking = [
            look_loss(*compared[taught.layer], taught, looks[taught.kind])
            for taught in TAUGHT
            if taught.layer < len(compared)
        ]
        looking += [
            look_loss(*compared[layer], Taught(layer, (head,)), before(tokens, *span, first))
            for layer, spans in enumerate(BEFORE)
            for head, span in enumerate(spans)
        ]
    lost = F.cross_entropy(logits.float(), targets[judged], reduction="none")
    counts = torch.where(targets[:, :1] >= 0, plain, 1.0).expand_as(targets)[judged]
    return (lost * counts).mean(), torch.stack(looking)


def look_loss(query: Tensor, key: Tensor, taught: Taught, looks: Looks) -> Tensor:
    """Return how little some heads look where they should.

    It is the mean, over heads and positions, of the negative logarithm of the attention that the
    places of a position have together. Queries [batch, heads, length, width]; fewer keys.
    """
    device, group = query.device, query.shape[1] // key.shape[1]
    at, places = looks.positions.to(device), looks.places.to(device)
    if places.numel() == 0:
        return query.new_zeros((), dtype=torch.float)
    ahead = places + taught.ahead
    seen = (places >= 0) & (ahead <= at[..., None])  # not a place that is yet to come
    asking = torch.tensor(taught.heads, device=device)
    rows = torch.arange(len(at), device=device)[:, None, None]
    queries = query[rows, asking[:, None], at[:, None]]  # [rows, heads, positions, width]
    scores = queries @ key[:, asking // group].transpose(2, 3)
    lost: Tensor = LOST(scores * query.shape[3] ** -0.5, at, ahead * seen, seen)
    return lost


def before(tokens: Tensor, least: int, most: int, first: int) -> Looks:
    """Return the places so many tokens before some positions of each row."""
    rows, length = tokens.shape
    positions = torch.arange(first, length, APART, device=tokens.device).expand(rows, -1)
    places = positions[..., None] - torch.arange(least, most + 1, device=tokens.device)
    return Looks(positions.contiguous(), places.clamp(min=-1).contiguous())


class Lost(nn.Module):
    """What `look_loss` says of scores; a module, so that it can be compiled as the layers are."""

    def forward(self, scores: Tensor, at: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Return the mean for scores [rows, heads, positions, columns]."""
        columns = torch.arange(scores.shape[3], device=scores.device)
        scores = scores.float().masked_fill(columns > at[:, None, :, None], UNSEEN)
        index = places[:, None].expand(-1, scores.shape[1], -1, -1)
        right = scores.gather(3, index).masked_fill(~seen[:, None], UNSEEN)
        lost = scores.logsumexp(3) - right.logsumexp(3)
        counted = seen.any(2)[:, None].expand_as(lost)
        return torch.where(counted, lost, 0).sum() / counted.sum().clamp(1)


LOST = Lost()


class HeldOut:
    """Held-out samples, and how many of their answers the model gives without a mistake."""

    def __init__(self, tokenizer: Tokenizer, count: int, longest: int, context: int) -> None:
        """Make `count` samples of each task, none longer than `context`."""
        maker = TaskMaker(load_corpus("eval"), varied=False, longest=longest)
        self.rows: dict[str, list[Batch]] = {}
        for task in maker.makers:
            samples = (maker.make(f"held-{task}-{index}", task) for index in range(count))
            rows = [encode_sample(sample, tokenizer) for sample in samples]
            self.rows[task] = [pad_batch([row]) for row in rows if len(row.ids) <= context]

    @torch.no_grad()
    def right(self, model: TinyLlama, device: str) -> dict[str, int]:
        """Return the number of answers whose every token is the likeliest one, by task.

        A greedy answer is right if and only if each token is the likeliest after those before it.
        """
        counts: dict[str, int] = {}
        for task, batches in self.rows.items():
            counts[task] = 0
            for batch in batches:
                targets = batch.targets.to(device)
                with torch.autocast(torch.device(device).type, torch.bfloat16):
                    hidden = model.hidden(batch.tokens.to(device))[targets >= 0]
                    counts[task] += bool(
                        (model.logits(hidden).argmax(-1) == targets[targets >= 0]).all()
                    )
        return counts


def save(path: Path, model: TinyLlama, optimizers: Optimizers, progress: Progress) -> None:
    """Write a checkpoint, replacing the old one only when complete."""
    content = {"model": model.state_dict(), "config": asdict(model.config), **vars(progress)}
    content["optimizers"] = optimizers.state()
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)


def load(path: Path, model: TinyLlama, optimizers: Optimizers) -> Progress:
    """Read a checkpoint back."""
    content = torch.load(path, weights_only=True)
    model.load_state_dict(content["model"])
    optimizers.restore(content["optimizers"])
    return Progress(*(content[key] for key in ("step", "pool", "seconds", "tokens")))


def run(
    model: TinyLlama, stream: BatchStream, held_out: HeldOut, options: argparse.Namespace
) -> Progress:
    """Train until the time budget is spent; return what was done."""
    optimizers, path = Optimizers(model, options.rate, options.hold), Path(options.out)
    progress = load(path, model, optimizers) if options.resume else Progress()
    stream.pool, total = progress.pool, options.minutes * 60
    before = progress.seconds
    begin = saved = time.monotonic()
    mean: Tensor | None = None
    bar = tqdm(total=total, unit="s", mininterval=10, initial=int(before))
    for batch in stream:
        done = min(progress.seconds / total, 1.0)
        grown = max(1.0 - (1.0 - done) / options.grow, 0.0)
        stream.maker.longest = int(options.first + (options.last - options.first) * grown)
        loss, looking = losses(model, batch, options.device, options.plain_weight)
        (loss + options.looking * looking.mean()).backward()
        optimizers.step(done, progress.step)
        now_lost = torch.cat((loss[None], looking)).detach()
        mean = now_lost if mean is None else 0.98 * mean + 0.02 * now_lost
        now = time.monotonic()
        bar.update(now - begin + before - progress.seconds)
        progress.seconds, progress.pool = now - begin + before, stream.pool
        progress.step += 1
        progress.tokens += batch.tokens.numel()
        looks = " ".join(f"{lost:.3f}" for lost in mean[1:].tolist())
        bar.set_postfix(
            loss=f"{mean[0]:.4f}", looking=looks, step=progress.step, tokens=progress.tokens
        )
        if now - saved > options.save_minutes * 60 or progress.seconds >= total:
            save(path, model, optimizers, progress)
            right = held_out.right(model, options.device)
            shown = {
                "loss": mean[0].item(),
                "looking": mean[1:].tolist(),
                **vars(progress),
                "right": right,
            }
            with path.with_suffix(".jsonl").open("a") as log:
                log.write(json.dumps(shown) + "\n")
            bar.write(" ".join(f"{task} {count}" for task, count in right.items()))
            saved = time.monotonic()
        if progress.seconds >= total:
            break
    bar.close()
    return progress


def main() -> None:
    """Build model, tokenizer and data, then train."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    sizes = ModelConfig(layers=options.layers, feed_forward=options.feed_forward)
    model = load_gguf(options.init) if options.init else wired(TinyLlama(sizes))
    tokenizer = load_tokenizer(options.tokenizer or options.init)
    if options.compile:
        for module in (*model.blk, LOST):
            module.compile(dynamic=True)
    corpus = load_corpus("train")
    rare = rare_pieces(tokenizer, [function.source for function in corpus.functions])
    maker = TaskMaker(corpus, pieces=rare)
    stream = BatchStream(
        maker, tokenizer, options.budget, options.context, options.plain, options.seed
    )
    held_out = HeldOut(tokenizer, options.samples, options.last, options.context)
    progress = run(model.to(options.device), stream, held_out, options)
    print(f"{progress.step} steps, {progress.tokens} tokens, {progress.seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
