"""Modelfiles: the syntax, what is refused, and that what is written is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ngramspec.errors import FormatError, InputError, NgramspecError
from ngramspec.models.ollama.modelfile import (
    MOST_BYTES,
    ExampleMessage,
    Modelfile,
    parse_modelfile,
    read_modelfile,
)
from ngramspec.models.ollama.parameters import KINDS

WHOLE = '''# A model for code.
FROM ./model.gguf

from ./projector.gguf
ADAPTER ./lora.gguf
PARAMETER temperature 0.25
PARAMETER num_ctx 8192
PARAMETER stop "<|im_end|>"
PARAMETER stop """### """
PARAMETER temperature 0.5
  TEMPLATE """{{ if .System }}{{ .System }}
# no comment
{{ end }}{{ .Prompt }} """
SYSTEM You are "Mario".
DRAFT ngram-mod,ngram-cache
MESSAGE user Hello: you
MESSAGE assistant "Hi
there"
LICENSE MIT
LICENSE """
Apache "2"
"""
REQUIRES 0.14.0
'''


def test_every_instruction_is_read() -> None:
    modelfile = parse_modelfile(WHOLE)
    assert modelfile == Modelfile(
        base="./model.gguf",
        more=("./projector.gguf",),
        template="{{ if .System }}{{ .System }}\n# no comment\n{{ end }}{{ .Prompt }} ",
        system='You are "Mario".',
        parameters={"temperature": 0.5, "num_ctx": 8192, "stop": ("<|im_end|>", "### ")},
        messages=(ExampleMessage("user", "Hello: you"), ExampleMessage("assistant", "Hi\nthere")),
        licenses=("MIT", '\nApache "2"\n'),
        adapters=("./lora.gguf",),
        drafts=("ngram-mod,ngram-cache",),
        requires="0.14.0",
    )
    assert modelfile.notes == ("line 23: REQUIRES 0.14.0 has no effect",)
    assert parse_modelfile(modelfile.to_text()) == modelfile


@pytest.mark.parametrize("draft", ["ngram-mod,ngram-cache", "./draft.gguf", "user/draft:1b"])
def test_a_draft_is_kept_as_it_is(draft: str) -> None:
    modelfile = parse_modelfile(f"FROM llama3:8b\ndraft {draft}\n")
    assert (modelfile.base, modelfile.drafts, modelfile.notes) == ("llama3:8b", (draft,), ())
    assert parse_modelfile("FROM llama3").drafts == ()


def test_capabilities_add_up() -> None:
    modelfile = parse_modelfile("FROM x\nCAPABILITY tools\ncapability thinking\n")
    assert modelfile.capabilities == ("tools", "thinking")
    assert parse_modelfile(modelfile.to_text()) == modelfile


def test_lines_of_drafts_add_up() -> None:
    modelfile = parse_modelfile("FROM qwen2:7b\nDRAFT qwen2:0.5b\nDRAFT ngram-mod\n")
    assert modelfile.drafts == ("qwen2:0.5b", "ngram-mod")
    assert parse_modelfile(modelfile.to_text()) == modelfile


@pytest.mark.parametrize(
    "names", ["{}_max {}_min {}_p_min ctx_size_{}", "{}-max {}-min {}-p-min ctx-size-{}"]
)
def test_parameters_of_drafts_are_read_with_either_stroke(names: str) -> None:
    values = {"draft_max": 8, "draft_min": 2, "draft_p_min": 0.6, "ctx_size_draft": 512}
    written = names.replace("{}", "draft").split()
    lines = [
        f"PARAMETER {name} {value}" for name, value in zip(written, values.values(), strict=True)
    ]
    assert parse_modelfile("\n".join(["FROM x", *lines])).parameters == values


@pytest.mark.parametrize(
    ("value", "system"),
    [
        ("plain text  ", "plain text"),
        ("\t tabs\tinside \t", "tabs\tinside"),
        ('"  spaces  "', "  spaces  "),
        ('""', ""),
        ('""""""', ""),
        ('"', None),
        ('"""', None),
        ('"""""', None),
        ('"a"b"', 'a"b'),
        ('"a" b', None),
        ('a "b"', 'a "b"'),
        ("'a'", "'a'"),
        ('"""a "quoted" b"""', 'a "quoted" b'),
        ('""""a""""', '"a"'),
        ('"""a\nb"""', "a\nb"),
        ('"a\n\n b"  ', "a\n\n b"),
        ('"a"\nb"', None),
        ('"""a\n"" \n# b """', 'a\n"" \n# b '),
        ("# no comment", "# no comment"),
        ("", ""),
    ],
)
def test_quotes_hold_spaces_and_lines(value: str, system: str | None) -> None:
    text = f"SYSTEM {value}\nFROM x\n"
    if system is None:
        with pytest.raises(InputError):
            parse_modelfile(text)
    else:
        assert parse_modelfile(text).system == system


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_kind_end_a_value(end: str) -> None:
    text = end.join(["\ufeff# c", "FROM x", "", "SYSTEM s", 'TEMPLATE "a', 'b"', "MESSAGE bob x"])
    with pytest.raises(InputError, match="line 7: expected a role"):
        parse_modelfile(text)
    modelfile = parse_modelfile(text.replace("bob", "user"))
    assert (modelfile.base, modelfile.system, modelfile.template) == ("x", "s", f"a{end}b")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "expected a FROM line"),
        ("SYSTEM x", "expected a FROM line"),
        ("FROM", "line 1: expected a value after FROM"),
        ("FROM \n", "line 1: expected a value after FROM"),
        ('FROM ""', "line 1: expected a value after FROM"),
        ('FROM x\nDRAFT ""', "line 2: expected a value after DRAFT"),
        ("FROM x\n\nFORM y", r"line 3: unknown instruction 'FORM': did you mean FROM\?"),
        ("FROM x\n123 y", "line 2: unknown instruction '123': expected one of FROM, "),
        ("FROM x\nPARAMETER", "line 2: expected a name and a value after PARAMETER"),
        ("FROM x\nPARAMETER seed", "line 2: expected a name and a value after PARAMETER"),
        ("FROM x\nPARAMETER  \t ", "line 2: expected a name and a value after PARAMETER"),
        ("FROM x\nPARAMETER seed x", "line 2: seed: expected an integer, found 'x'"),
        ("FROM x\nPARAMETER sede 1", r"line 2: unknown parameter 'sede': did you mean seed\?"),
        ("FROM x\nMESSAGE user", "line 2: expected a role and a value after MESSAGE"),
        ("FROM x\nMESSAGE User hi", r"line 2: expected a role \(system, user, assistant\)"),
        ('FROM x\nSYSTEM "a\nb\n', 'line 2: expected " to end the value of SYSTEM'),
        ('FROM x\n\nSYSTEM """a\n""', 'line 3: expected """ to end the value of SYSTEM'),
    ],
)
def test_errors_name_the_line_and_what_is_expected(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse_modelfile(text)


def test_the_last_one_counts_and_what_has_no_effect_is_noted() -> None:
    modelfile = parse_modelfile("FROM x\nSYSTEM a\nSYSTEM b\nRENDERER r\nPARSER p\nTEMPLATE t")
    assert (modelfile.system, modelfile.template) == ("b", "t")
    assert (modelfile.renderer, modelfile.parser) == ("r", "p")
    assert modelfile.notes == ("line 4: RENDERER r has no effect", "line 5: PARSER p has no effect")
    assert parse_modelfile(modelfile.to_text()) == modelfile


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_may_have_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "Modelfile"
    path.write_bytes("FROM x\r\nSYSTEM h\u00e9\r\n".encode(encoding))
    assert read_modelfile(path) == Modelfile("x", system="h\u00e9")
    path.write_bytes(b"\xfe\xff" + "FROM y".encode("utf-16-be"))
    assert read_modelfile(str(path)).base == "y"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_bytes(b"FROM x\nSYSTEM \xff")
    with pytest.raises(FormatError, match=r"Modelfile: expected utf-8, at offset 14"):
        read_modelfile(path)
    path.write_bytes(b"FORM x")
    with pytest.raises(InputError, match=rf"{path}: Modelfile, line 1: unknown instruction"):
        read_modelfile(path)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(FormatError, match=f"at most {MOST_BYTES} bytes"):
        read_modelfile(path)
    with pytest.raises(FileNotFoundError):
        read_modelfile(tmp_path / "missing")


@pytest.mark.parametrize(
    "fields",
    [
        {"base": ""},
        {"base": "x", "more": ("",)},
        {"base": "x", "drafts": ("ngram-mod", "")},
        {"base": "x", "parameters": {"seed": "1"}},
        {"base": "x", "parameters": {"stop": "text"}},
        {"base": "x", "parameters": {"stop": ()}},
        {"base": "x", "parameters": {"sede": 1}},
        {"base": "x", "messages": (ExampleMessage("tool", "t"),)},
    ],
)
def test_a_modelfile_of_impossible_parts_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Modelfile(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ['a"""\nb', '"""\n', 'x"\ny"""\nz'])
def test_what_quotes_cannot_hold_is_refused_when_written(value: str) -> None:
    with pytest.raises(InputError, match="SYSTEM: a line of the value ends with quotes"):
        Modelfile("x", system=value).to_text()


VALUES = st.text(alphabet='ab "\n\r\t#{}\u00e9\u2028\x1c', max_size=12)
OPTIONAL = st.none() | VALUES


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in draw(st.sets(st.sampled_from(sorted(KINDS)), max_size=4)):
        kind = KINDS[name]
        least, most = max(kind.least, -(2.0**62)), min(kind.most, 2.0**62)
        if kind.type is int:
            values[name] = draw(st.integers(int(least), int(most)))
        elif kind.type is float:
            values[name] = draw(st.floats(least, most))
        else:
            several = st.lists(VALUES, min_size=1, max_size=3).map(tuple)
            values[name] = draw(st.booleans() if kind.type is bool else several)
    return values


@given(
    base=VALUES.filter(bool),
    more=st.lists(VALUES.filter(bool), max_size=2).map(tuple),
    several=st.lists(VALUES, max_size=2).map(tuple),
    optional=st.tuples(*[OPTIONAL] * 5),
    drafts=st.lists(VALUES.filter(bool), max_size=2).map(tuple),
    parameters=parameters(),
    messages=st.lists(
        st.builds(ExampleMessage, st.sampled_from(["system", "user", "assistant"]), VALUES),
        max_size=3,
    ).map(tuple),
)
def test_what_is_written_is_read_again(
    base, more, several, optional, drafts, parameters, messages
) -> None:
    template, system, requires, renderer, parser = optional
    written = Modelfile(
        base, more, template, system, parameters, messages, several, several, drafts, several,
        requires, renderer, parser,
    )  # fmt: skip
    try:
        text = written.to_text()
    except InputError:
        assume(False)
    assert parse_modelfile(text) == written


@given(value=st.text(alphabet='a"\n', max_size=8))
def test_only_quotes_at_the_end_of_a_line_cannot_be_written(value: str) -> None:
    try:
        text = Modelfile("x", system=value).to_text()
    except InputError:
        assert '"""\n' in value or value.startswith('"') or '"\n' in value
    else:
        assert parse_modelfile(text).system == value


PIECES = [
    "FROM ",
    "FROM x\n",
    "PARAMETER ",
    "stop ",
    "seed 1",
    "MESSAGE user ",
    "SYSTEM ",
    "DRAFT ",
]
PIECES += ['"', '"""', "\n", "\r", " ", "\t", "#", "\ufeff", "\u00e9", "\x00", "{{", "LICENSE "]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=15).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        modelfile = parse_modelfile(text)
    except NgramspecError:
        return
    assert modelfile.base
