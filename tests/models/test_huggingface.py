"""Models that others have downloaded: the hub's cache and llama.cpp's older folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ngramspec.errors import InputError
from ngramspec.models.huggingface import NotDownloadedError, find_downloaded

VARIABLES = (
    *("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"),
)


def hub(folder: Path, *names: str, commit: str = "abc", main: str = "abc") -> dict[str, str]:
    """Make files of some/one-GGUF in a hub's cache and return the variable that names it."""
    repository = folder / "models--some--one-GGUF"
    for name in names:
        path = repository / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(main + "\n")
    return {"HF_HUB_CACHE": str(folder), "HOME": str(folder / "home")}


@pytest.mark.parametrize(
    ("names", "tag", "file"),
    [
        (["one-Q4_K_M.gguf", "one-Q8_0.gguf", "one-BF16.gguf"], "", "one-Q4_K_M.gguf"),
        (["one-Q8_0.gguf", "one-BF16.gguf"], "", "one-Q8_0.gguf"),
        (["one-BF16.gguf", "mmproj-one-Q8_0.gguf"], "", "one-BF16.gguf"),
        (["one-Q4_K_M.gguf", "one-Q8_0.gguf"], ":q8_0", "one-Q8_0.gguf"),
        (["one.IQ4_XS.gguf", "one.Q4_K_M.gguf"], ":IQ4_XS", "one.IQ4_XS.gguf"),
        (["one-Q8_0-00002-of-00002.gguf", "one-Q8_0-00001-of-00002.gguf"], ":Q8_0",
         "one-Q8_0-00001-of-00002.gguf"),
        (["BF16/one-BF16-00001-of-00003.gguf"], ":BF16", "BF16/one-BF16-00001-of-00003.gguf"),
    ],
)  # fmt: skip
def test_the_quantisation_chooses_a_file(
    tmp_path: Path, names: list[str], tag: str, file: str
) -> None:
    path = find_downloaded(f"some/one-GGUF{tag}", env=hub(tmp_path, *names))
    assert path.as_posix().endswith(f"snapshots/abc/{file}")


def test_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    env = hub(tmp_path, "one-Q4_K_M.gguf", "x/one.gguf")
    assert find_downloaded("some/one-GGUF", "x/one.gguf", env).name == "one.gguf"
    with pytest.raises(NotDownloadedError, match=r"--include 'two\.gguf'"):
        find_downloaded("some/one-GGUF", "two.gguf", env)


def test_of_several_versions_the_current_one_is_taken(tmp_path: Path) -> None:
    hub(tmp_path, "one-Q8_0.gguf", commit="zzz")
    env = hub(tmp_path, "one-Q8_0.gguf", commit="abc", main="abc")
    assert find_downloaded("some/one-GGUF", env=env).read_text() == "abc"


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_cache_lies_where_the_variables_say(tmp_path: Path, variable: str) -> None:
    below = {
        "HF_HOME": "hub",
        "XDG_CACHE_HOME": "huggingface/hub",
        "HOME": ".cache/huggingface/hub",
    }
    hub(tmp_path / below.get(variable, ""), "one-Q8_0.gguf")
    env = {"HOME": str(tmp_path / "nobody"), variable: str(tmp_path)}
    assert find_downloaded("some/one-GGUF", env=env).name == "one-Q8_0.gguf"


@pytest.mark.parametrize("variable", ["LLAMA_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_older_versions_of_llama_cpp_had_a_folder_of_their_own(
    tmp_path: Path, variable: str
) -> None:
    below = {"LLAMA_CACHE": "", "XDG_CACHE_HOME": "llama.cpp", "HOME": ".cache/llama.cpp"}[variable]
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "some_one-GGUF_one-Q8_0.gguf").write_text("")
    env = {"HOME": str(tmp_path / "nobody"), variable: str(tmp_path)}
    assert find_downloaded("some/one-GGUF:Q8_0", env=env).parent == folder


def test_the_message_says_what_is_there_and_how_to_get_the_rest(tmp_path: Path) -> None:
    env = hub(tmp_path, "one-Q8_0.gguf")
    with pytest.raises(NotDownloadedError) as caught:
        find_downloaded("some/one-GGUF:BF16", env=env)
    assert str(caught.value) == (
        "some/one-GGUF:BF16 is not downloaded; there is one-Q8_0.gguf. Get it with: "
        "hf download some/one-GGUF --include '*BF16*.gguf' '*bf16*.gguf'"
    )
    with pytest.raises(NotDownloadedError, match=r"a/b is not downloaded\. Get it with"):
        find_downloaded("a/b", env=env)


@pytest.mark.parametrize("name", ["", "one", "a/b/c", "../../etc", "a/../b", "a/b:c/d", "a b/c"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="must be named as USER/MODEL"):
        find_downloaded(name, env={"HOME": "/nonexistent"})
