"""LlamaModel: facts, text to tokens and back, chat templates, and every documented error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec import embedded_model
from ngramspec.errors import BackendError, FormatError, InputError, StateError
from ngramspec.llamacpp.loading import Loading, may_repack
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.text.templates.templates import MAX_TEMPLATE_CHARS, MAX_TEMPLATES
from ngramspec.text.tokenizers.llama_library import SIZES, Library, _check, load_library, reasons
from ngramspec.text.tokenizers.llama_vocabulary import MAX_RUN

HELLO = [{"role": "user", "content": "hi"}]
TEXTS = ["", " ", "hello", "def f(x):\n    return x\n", "a\0b", "\ud800"]
TEXTS += ["héllo wörld 🙂 \u6f22\u5b57"]
KINDS = [
    ("llama", False, False, 0),
    ("gemma3", False, False, 64),
    ("mamba", True, False, 0),
    ("lfm2", False, True, 0),
]


@pytest.fixture(scope="module")
def chat(model_path: Callable[[str], str]) -> Iterator[LlamaModel]:
    with LlamaModel(model_path("chat")) as llama:
        yield llama


@pytest.fixture(scope="module")
def embedded() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model()) as llama:
        yield llama


def test_facts_are_those_of_the_file(embedded: LlamaModel) -> None:
    assert embedded.path == embedded_model()
    assert (embedded.vocab_size, embedded.n_ctx_train) == (4096, 2048)
    assert embedded.architecture == "llama"
    assert embedded.metadata["general.name"] == "ngramspec-tiny-code"
    assert "Q8_0" in embedded.description
    assert 6_000_000 < embedded.num_params < embedded.size_bytes < 8_000_000
    assert embedded.chat_template == embedded.metadata["tokenizer.chat_template"]
    assert embedded.tool_template is None
    assert (embedded.bos, embedded.eos, embedded.add_bos) == (0, 2, False)
    assert embedded.fim_pre == embedded.fim_suf == embedded.fim_mid == -1
    assert embedded.fim_pad == embedded.fim_rep == embedded.fim_sep == -1
    assert (embedded.n_swa, embedded.is_stateful) == (0, False)


def test_a_llama_with_amx_kernels_repacks_weights_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built_with = b"AMX_INT8 = 1" in load_library().lib.llama_print_system_info()
    assert load_library().has_amx is built_with
    assert may_repack(load_library(), None) is not built_with
    monkeypatch.setattr(Library, "has_amx", property(lambda self: True))
    caplog.clear()
    assert may_repack(load_library(), True) is True
    assert may_repack(load_library(), False) is False
    assert caplog.records == []
    assert may_repack(load_library(), None) is False
    assert "AMX" in caplog.text


@pytest.mark.parametrize(("name", "recurrent", "hybrid", "window"), KINDS)
def test_kinds_are_told_apart(
    model_path: Callable[[str], str], name: str, recurrent: bool, hybrid: bool, window: int
) -> None:
    with LlamaModel(model_path(name)) as model:
        assert (model.is_recurrent, model.is_hybrid, model.n_swa) == (recurrent, hybrid, window)
        assert model.is_stateful == (recurrent or hybrid)
        assert model.chat_template is None


def test_options_reach_llama_cpp(model_path: Callable[[str], str]) -> None:
    unmapped, plain = Loading(mode="none"), Loading(repack=False)
    options = [{"loading": unmapped}, {"loading": plain}, {"vocab_only": True}]
    for option in options:
        with LlamaModel(model_path("llama"), **option) as model:  # type: ignore[arg-type]
            assert model.tokenize("ab", add_special=False).tolist() == [326, 327]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_survive_tokens(embedded: LlamaModel, text: str) -> None:
    ids = embedded.tokenize(text)
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert embedded.detokenize(ids) == text.replace("\ud800", "?")
    assert b"".join(embedded.piece(int(i)) for i in ids).decode() == text.replace("\ud800", "?")


def test_special_tokens_are_parsed_and_shown_on_request(chat: LlamaModel) -> None:
    text = "<|im_start|>a<|im_end|>"
    parsed = chat.tokenize(text, parse_special=True)
    assert parsed.tolist() == [1, 3, 326, 4]
    assert chat.tokenize(text, add_special=False, parse_special=True).tolist() == [3, 326, 4]
    assert chat.tokenize(text).size > 10
    assert chat.detokenize(parsed) == "a"
    assert chat.detokenize(parsed, special=True) == f"<s>{text}"
    assert [chat.piece(4), chat.piece(4, special=True)] == [b"", b"<|im_end|>"]
    assert [chat.token_text(4), chat.token_text(-1)] == ["<|im_end|>", ""]
    assert [i for i in range(-1, chat.vocab_size + 1) if chat.is_end(i)] == [2, 4]


def test_the_begin_token_is_added_where_the_model_asks_for_it(
    chat: LlamaModel, embedded: LlamaModel
) -> None:
    assert chat.tokenize("").tolist() == [1]
    assert chat.tokenize("", add_special=False).tolist() == []
    assert embedded.tokenize("").tolist() == []


def test_long_texts_are_tokenised_whole(embedded: LlamaModel, chat: LlamaModel) -> None:
    """llama.cpp's own function, called once for the whole text, is the reference."""
    text = Path(__file__).read_text() * 5
    data = text.encode()
    size = len(data) + 1
    buffer = (ctypes.c_int32 * size)()
    for model in (embedded, chat):
        call = model.library.lib.llama_tokenize
        count = call(model.vocabulary.address, data, len(data), buffer, size, True, False)
        assert model.tokenize(text).tolist() == buffer[:count]


@pytest.mark.parametrize("run", ["x" * 60_000, " " * 60_000, "\n" * 60_000, "\u6f22" * 30_000])
def test_runs_that_would_overflow_the_stack_are_cut(embedded: LlamaModel, run: str) -> None:
    ids = embedded.tokenize(f"a {run} b")
    assert embedded.detokenize(ids) == f"a {run} b"


def test_a_cut_never_goes_through_a_special_token(embedded: LlamaModel) -> None:
    for before in range(MAX_RUN - 12, MAX_RUN + 3):
        text = "x" * before + "<|im_end|>" + "y" * 50
        ids = embedded.tokenize(text, parse_special=True)
        assert np.count_nonzero(ids == embedded.eos) == 1
        assert embedded.detokenize(ids, special=True) == text


def test_ids_beyond_the_vocabulary_are_refused(embedded: LlamaModel) -> None:
    for token in (-1, 4096, 1 << 40):
        for call in (lambda t: embedded.piece(t), lambda t: embedded.detokenize([5, t])):
            with pytest.raises(InputError, match=r"token ids must be 0\.\.4095"):
                call(token)
    with pytest.raises(InputError):
        embedded.token_text(4096)


def test_a_conversation_is_rendered_and_tokenised(embedded: LlamaModel) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n"
    answer = "<|im_start|>assistant\n"
    assert embedded.render_chat(HELLO, add_generation_prompt=False) == expected
    assert embedded.render_chat(HELLO) == expected + answer
    ids = embedded.tokenize_chat(HELLO)
    assert embedded.detokenize(ids, special=True) == expected + answer
    assert ids.tolist().count(1) == 2


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ bos_token }}hi"])
def test_the_begin_token_is_there_once(chat: LlamaModel, template: str) -> None:
    assert chat.tokenize_chat(HELLO, template=template).tolist() == [1, 333, 334]


def test_templates_get_tools_and_variables(chat: LlamaModel) -> None:
    template = "{{ tools[0].name }} {{ think }} {{ eos_token }} {{ [1] | tojson }}"
    text = chat.render_chat(HELLO, template=template, tools=[{"name": "f"}], think=True)
    assert text == "f True <|im_end|> [1]"
    assert chat.render_chat(HELLO, template="{{ tools is defined }}") == "False"
    assert chat.render_chat(HELLO, template="{{ self.x }}{{ messages.x }}", self={"x": 1}) == ""


def test_a_template_for_tools_is_used_where_there_are_tools(
    chat: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "tool_template", "T{{ tools[0].function.name }}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat.render_chat(HELLO, tools=tools) == "Tf"
    assert "<|im_start|>user" in chat.render_chat(HELLO)
    assert chat.chat_capabilities()["supports_tools"]


def test_a_begun_answer_stays_open(chat: LlamaModel) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    text = chat.render_chat(begun, continue_final_message=True)
    assert text == chat.render_chat(HELLO) + "Well, "
    assert chat.tokenize_chat(begun, continue_final_message=True).size > 0


def test_a_begin_token_that_the_tokenizer_adds_too_is_shown_as_it_is_written(
    chat: LlamaModel,
) -> None:
    template = "{{ bos_token }}hi{{ bos_token }}"
    assert chat.render_chat(HELLO, template=template) == "<s>hi<s>"
    assert chat.tokenize_chat(HELLO, template=template).tolist().count(1) == 2


def test_many_templates_do_not_pile_up(chat: LlamaModel) -> None:
    for number in range(3 * MAX_TEMPLATES):
        assert chat.render_chat(HELLO, template=f"{{{{ {number} }}}}") == str(number)
    assert len(chat._templates._compiled) <= MAX_TEMPLATES


BAD_TEMPLATES = {
    "syntax": ("{% for %}", "the chat template is not valid"),
    "refusal": ("{{ raise_exception('no system') }}", "refuses: no system"),
    "undefined": ("{{ messages[9].content.x + 1 }}", "refuses"),
    "type": ("{{ 1 + [] }}", "refuses"),
    "division": ("{{ 1 / 0 }}", "refuses: division by zero"),
    "attribute": ("{{ messages.__class__.__mro__ }}", "unsafe"),
    "hidden": ("{% if messages.__class__ %}{% endif %}", "unsafe"),
    "method": ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
    "writing": ("{{ messages.clear() }}", "unsafe"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "a number above 100000"),
    "long": ("x" * (MAX_TEMPLATE_CHARS + 1), "characters at most"),
}


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_templates_that_fail_or_reach_out_are_refused(chat: LlamaModel, name: str) -> None:
    template, message = BAD_TEMPLATES[name]
    with pytest.raises(InputError, match=message):
        chat.render_chat(HELLO, template=template)


def test_bad_conversations_are_refused(chat: LlamaModel) -> None:
    with pytest.raises(InputError, match="must be objects with a role"):
        chat.render_chat(["hi"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="must not be bos_token"):
        chat.render_chat(HELLO, bos_token="x")


def test_a_model_without_a_template_says_so(model_path: Callable[[str], str]) -> None:
    with LlamaModel(model_path("llama")) as model:
        with pytest.raises(InputError, match="this model has no chat template"):
            model.tokenize_chat(HELLO)
        assert model.render_chat(HELLO, template="x") == "x"


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(FileNotFoundError):
        LlamaModel(path)
    path.write_bytes(b"not a model")
    with pytest.raises(FormatError, match="is not a GGUF file"):
        LlamaModel(path)
    path.write_bytes(embedded_model().read_bytes()[:3000])
    with pytest.raises(FormatError, match="longer than the file"):
        LlamaModel(path)
    path.write_bytes(embedded_model().read_bytes()[:-500_000])
    with pytest.raises(BackendError, match=r"cannot load .*model\.gguf: "):
        LlamaModel(path)


def test_a_closed_model_says_so(model_path: Callable[[str], str]) -> None:
    model = LlamaModel(model_path("chat"))
    assert model.piece(326) == b"a"
    model.close()
    model.close()
    for call in (lambda: model.tokenize("a"), lambda: model.piece(5), lambda: model.token_text(5)):
        with pytest.raises(StateError, match="the model is closed"):
            call()
    assert model.piece(326) == b"a"  # known by now
    assert model.render_chat(HELLO, template="x") == "x"


def test_a_library_that_does_not_fit_is_refused() -> None:
    class Other:
        """A llama.cpp in which one thing is different."""

        def __init__(self, **changed: Any) -> None:
            self.changed = changed

        def __getattr__(self, name: str) -> Any:
            if name in self.changed and self.changed[name] is None:
                raise AttributeError(name)
            return self.changed.get(name, getattr(load_library().lib, name))

    _check(Other())
    with pytest.raises(BackendError, match="lacks llama_decode: ngramspec needs"):
        _check(Other(llama_decode=None))
    for name, size in SIZES.items():
        with pytest.raises(BackendError, match=f"{name} has 4 bytes, expected {size}"):
            _check(Other(**{name: ctypes.c_int32}))


def test_reasons_are_short() -> None:
    assert reasons([]) == ""
    assert reasons(["decode: no room", "decode: no room", "x"]) == ": no room; x"
    assert reasons(["a: b", "load: error loading model: damaged"]) == ": damaged"
