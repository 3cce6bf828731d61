"""build-cache --kind suffix: an index of the texts, told by the commands and read by generate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cli import CODE, FEW, assert_one_error, bytes_of, succeed
from helpers.files import resealed
from ngramspec import create_drafter
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.costs import CostTable, save_costs
from ngramspec.drafting.statistics import Saves, open_shared
from ngramspec.errors import InputError, VocabMismatchError
from ngramspec.files.container import open_container
from ngramspec.lab.builder import BuildOptions, NoProgress, Resources, build
from ngramspec.lab.builder.local import BuildStopped
from ngramspec.llamacpp import LlamaModel
from ngramspec.llamacpp.saved_costs import costs_path
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.models import embedded_model
from ngramspec.runtime import DraftSettings, checked_params
from ngramspec.text.tokenizers import load_tokenizer

pytestmark = pytest.mark.usefixtures("empty_folder")
INDEX = ("--kind", "suffix")
PROMPT = "def area(width, height):"


def built(*arguments: str, name: str = "code.ngx") -> dict[str, Any]:
    result = succeed("build-cache", *arguments, *INDEX, "-o", name, "--json")
    return dict(json.loads(result.stdout))


def texts_of(name: str) -> list[int]:
    return np.frombuffer(open_container(name).view("tokens"), "<i4").tolist()


def test_an_index_holds_the_texts_in_order_whatever_the_means() -> None:
    report = built(*FEW)
    tokenizer = load_tokenizer(embedded_model())
    tokens = [tokenizer.encode(Path(name).read_text()).tolist() for name in FEW]
    assert texts_of("code.ngx") == [token for text in tokens for token in [*text, -1]]
    assert report["header"]["num_pairs"] == report["totals"]["tokens"] == sum(map(len, tokens))
    assert report["file_bytes"] == Path("code.ngx").stat().st_size < 40 * report["totals"]["tokens"]
    built(*FEW, "-j", "3", "--memory", "64M", name="other.ngx")
    assert bytes_of("code.ngx") == bytes_of("other.ngx")
    assert sorted(os.listdir()) == ["code.ngx", "other.ngx"]


def test_equal_documents_come_once_and_options_of_the_corpus_hold() -> None:
    Path("a.txt").write_text("one two three\n")
    Path("b.txt").write_text("one two three\n")
    Path("c.rst").write_text("another\n")
    report = built(".", "--include", "*.txt", "--no-provenance")
    assert (report["totals"]["documents"], report["totals"]["duplicates"]) == (1, 1)
    assert texts_of("code.ngx").count(-1) == 1
    assert "about" not in open_container("code.ngx").sections


def test_what_it_is_worth_is_measured_on_held_out_text() -> None:
    result = succeed("build-cache", f"{CODE}/email", f"{CODE}/json", *INDEX, "-o", "code.ngx",
                    "--held-out", "30%")  # fmt: skip
    assert "suffix on " in result.stdout
    assert "with the file" in result.stdout
    assert "bytes each" in result.stdout


def test_its_speed_is_that_at_the_costs_saved_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with LlamaModel(embedded_model(), vocab_only=True) as model:
        path = costs_path(model, ContextSettings())
    path.parent.mkdir(parents=True)
    save_costs(CostTable(((1, 1.0), (2, 2.0)), "no draft pays"), path)
    arguments = (f"{CODE}/email", f"{CODE}/json", "--held-out", "30%")
    mine = built(*arguments, "--model", str(embedded_model()))["held_out"]
    usual = built(*arguments)["held_out"]
    assert (mine["costs"], usual["costs"]) == ("no draft pays", "cpu")
    for drafts in ("with_file", "without_file"):
        assert mine[drafts].pop("modelled_speedup") == pytest.approx(1, abs=0.01)
        assert usual[drafts].pop("modelled_speedup") > 1.1
        assert mine[drafts] == usual[drafts]  # of drafts at full length


def test_the_size_is_kept() -> None:
    report = built(*FEW, "--max-size", "64K")
    assert 50 << 10 < report["file_bytes"] <= 64 << 10
    assert report["header"]["num_pairs"] < report["totals"]["tokens"]


def test_a_stopped_build_goes_on() -> None:
    built(CODE, "--no-provenance")
    tokenizer = load_tokenizer(embedded_model())
    options = BuildOptions(kind="suffix", provenance=False)

    class Stops(NoProgress):
        calls = 0

        def done(self, num_bytes: int, num_tokens: int) -> None:
            self.calls += 1

        @property
        def stopped(self) -> bool:
            return self.calls > 20

    with pytest.raises(BuildStopped):
        build([CODE], "again.ngx", tokenizer, options, Resources(jobs=2), Stops())
    assert Path(".again.ngx.build/texts").stat().st_size > 1000
    with open(".again.ngx.build/texts", "ab") as file:
        file.write(bytes(8))  # written, but not in a checkpoint before the end
    build([CODE], "again.ngx", tokenizer, options, resume=True)
    assert bytes_of("again.ngx") == bytes_of("code.ngx")


def test_a_corpus_that_is_too_large_ends_the_build_early_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, most = load_tokenizer(embedded_model()), 60_000
    whole = built(CODE)["totals"]["tokens"]
    assert whole > most
    phases: list[str] = []

    class Stops(NoProgress):
        def __init__(self, at: int) -> None:
            self.at = at

        def phase(self, name: str, total: int) -> None:
            phases.append(name)

        def done(self, num_bytes: int, num_tokens: int) -> None:
            self.stopped = num_tokens > self.at

    def build_again(progress: NoProgress, *, resume: bool) -> None:
        options, each = BuildOptions(kind="suffix"), Resources(seconds=0.0)
        build([CODE], "again.ngx", tokenizer, options, each, progress, resume=resume)

    monkeypatch.setattr("ngramspec.lab.builder.finish.MOST_TOKENS", most)
    for resume in (False, True):
        if resume:
            with pytest.raises(BuildStopped):
                build_again(Stops(2_000), resume=False)
            assert Path(".again.ngx.build/state.json").exists()
        with pytest.raises(InputError, match=f"an index holds {most:,} tokens at most"):
            build_again(Stops(whole), resume=resume)
        assert os.listdir() == ["code.ngx"]
    assert set(phases) == {"reading"}


def test_options_of_other_kinds_are_refused_by_the_library_too() -> None:
    with pytest.raises(InputError, match="holds texts, not counts: leave out min_count"):
        BuildOptions(kind="suffix", min_count=2)


def test_inspect_and_verify_know_an_index(invoke: Any) -> None:
    report = built(*FEW)
    facts = json.loads(invoke("cache", "inspect", "code.ngx", "--json").stdout)
    header = report["header"]
    assert (facts["kind"], facts["tokenizer"]) == ("suffix", "the embedded model's")
    index = facts["index"]
    assert (index["num_texts"], index["num_tokens"]) == (2, header["num_pairs"])
    assert index["num_positions"] == header["num_ngrams"]
    assert index["bytes_per_token"] == report["file_bytes"] / header["num_pairs"]
    assert [*index["sections"]] == ["shape", "about", "tokens", "lines"]
    assert facts["about"]["options"]["kind"] == "suffix"
    assert not {"pool", "ngram_min", "min_count"} & set(facts["about"]["options"])
    stdout = invoke("cache", "inspect", "code.ngx").stdout
    assert f"tokens     {header['num_pairs']:,} in 2 texts, " in stdout
    result = invoke("cache", "verify", "code.ngx")
    assert f"{header['num_pairs']:,} tokens: good" in result.stdout
    whole = bytearray(bytes_of("code.ngx"))
    whole[-9] ^= 1
    Path("code.ngx").write_bytes(whole)
    result = invoke("cache", "verify", "code.ngx")
    assert result.exit_code == 1
    assert "section 'lines' at offset" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (("merge", "code.ngx", "code.ngx", "-o", "x.ngc"), "merge"),
        (("convert", "code.ngx", "x.bin"), "convert"),
        (("prune", "code.ngx", "-o", "x.ngc", "--min-count", "2"), "prune"),
    ],
)
def test_other_commands_say_that_it_holds_texts(invoke: Any, arguments: Any, task: str) -> None:
    Path("a.txt").write_text("one two three\n")
    built("a.txt")
    message = f"code.ngx is an index of kind suffix: it holds texts, no statistics to {task}"
    assert_one_error(invoke("cache", *arguments), message, 2)
    assert sorted(os.listdir()) == ["a.txt", "code.ngx"]


def test_generate_reads_an_index(invoke: Any) -> None:
    built(*FEW)
    answers = []
    for more in ((), ("--suffix-index", "code.ngx")):
        result = succeed("generate", "-p", PROMPT, "-n", "24", "--temp", "0", "--raw", "--json",
                        "--spec-type", "suffix", *more)  # fmt: skip
        answers.append(json.loads(result.stdout))
    assert answers[0]["text"] == answers[1]["text"]
    result = invoke("generate", "-p", "x", "--spec-type", "ngram-mod", "--suffix-index", "code.ngx")
    assert_one_error(result, "--suffix-index requires suffix, but --spec-type is ngram-mod", 2)
    result = invoke("generate", "-p", "x", "--spec-type", "suffix", "--suffix-index", "absent.ngx")
    assert_one_error(result, "absent.ngx: No such file", 2)
    Path("code.ngx").write_bytes(bytes_of("code.ngx").replace(b"\x89NGRAM", b"\x89NGRAN"))
    result = invoke("generate", "-p", "x", "--spec-type", "suffix", "--suffix-index", "code.ngx")
    assert_one_error(result, "code.ngx: not a statistics file of ngramspec", 1)


def params_of(**own: Any) -> dict[str, dict[str, Any]]:
    params = {"suffix": {"static": Path("code.ngx"), **own}}
    return checked_params(DraftSettings(params=params), embedded_model())


def test_a_server_maps_an_index_once_for_all_requests() -> None:
    built(*FEW)
    with Saves() as saves:
        params = open_shared(params_of(), saves)
        index = params["suffix"]["static"]
        assert isinstance(index, SuffixIndex)
        drafter = create_drafter("suffix", params=params)
        tokens = texts_of("code.ngx")
        drafter.begin(0, np.array(tokens[110:150], np.int32))
        assert drafter.propose(0, 8).tolist() == tokens[150:158]
        data = bytearray(bytes_of("code.ngx"))
        data[32] ^= 1  # of the fingerprint
        Path("code.ngx").unlink()  # it is mapped
        Path("code.ngx").write_bytes(resealed(bytes(data)))
        with pytest.raises(VocabMismatchError, match="built with another tokenizer"):
            open_shared(params_of(), saves)
        open_shared(params_of(any_tokenizer=True), saves)
