# make demo   set up .venv and run the main job on the embedded model
# make test   the same set-up and torch, then linters, types, stubs and the whole test suite
# make help   the other targets

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
VLLM ?= vllm==0.33.0
SGLANG ?= sglang==0.5.23
ARCTIC ?= arctic-inference==0.3.0
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.torch
SOURCES := pyproject.toml setup.py $(wildcard ext/ngramspec/*.pyx ext/ngramspec/*.pxd ext/include/*.h)

# Python compiles what it imports; a test builds the same sources again.
export PIP_NO_COMPILE := 1
export CYTHON_CACHE_DIR := $(CURDIR)/build/cython-cache

.PHONY: help demo test check types stubs engines fuzz asan clean

help:
	@grep -E '^# make' Makefile | sed 's/^# //'
	@echo "make check  linters, types and stubs only"
	@echo "make engines  tests against transformers, Arctic, and vLLM's and SGLang's own sources; fetches torch"
	@echo "make fuzz   property tests with many more examples"
	@echo "make asan   unit, property, thread and facade tests under the address and undefined-behaviour sanitizers"
	@echo "make clean  remove what was built, .venv included"

# llama-cpp-python is built from source the first time (minutes) and reused afterwards.
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=80" "Cython>=3.2,<3.4"
	@echo "Installing; llama-cpp-python is compiled the first time, which takes some minutes ..."
	CMAKE_ARGS="-DLLAVA_BUILD=OFF $$CMAKE_ARGS" $(BIN)/python -m pip install --quiet --prefer-binary "llama-cpp-python>=0.3.36"
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[llama,server,corpus,ray,bench,dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/ngramspec demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint ext
	$(MAKE) -j2 types stubs

types: $(STAMP)
	$(BIN)/mypy

stubs: $(STAMP)
	$(BIN)/python -m mypy.stubtest ngramspec --allowlist tools/stubtest_allowlist.txt --mypy-config-file pyproject.toml

# torch for the CPU: by itself pip would fetch gigabytes of CUDA. Tests that need it are skipped without.
$(TORCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet "$(TORCH)+cpu" || \
		$(BIN)/python -m pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu "$(TORCH)+cpu" || \
		echo "No torch for the CPU found: tests that need it are skipped"
	! $(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet "transformers>=5.23"
	touch $@

test: check $(TORCH_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The wheels are unpacked without what is compiled in them; the newest ones by VLLM= and SGLANG=.
# Arctic is compiled with the torch that is there; by itself it would fetch another one.
engines: $(TORCH_STAMP)
	$(BIN)/python -m pip install --quiet -r tests/adapters/vllm_requirements.txt
	$(BIN)/python -m pip install --quiet nanobind==2.9.2 ninja cmake wheel grpcio-tools
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation "$(ARCTIC)"
	mkdir -p build/engines
	$(BIN)/python -m pip download --quiet --no-deps --dest build/engines "$(VLLM)" "$(SGLANG)"
	cd build/engines && for name in vllm sglang; do \
		unzip -qo $$name-*.whl '*.py' '*.cpp' '*.h' '*.dist-info/*' -d $$name || test $$? -eq 11; done
	rm build/engines/*.whl
	VLLM_SOURCES=build/engines/vllm SGLANG_SOURCES=build/engines/sglang $(BIN)/python -m pytest \
		tests/hugging_face tests/adapters tests/compat tests/bench/test_gpu_replay.py tests/unit/test_verify_neutral.py \
		tests/packaging/test_examples.py tests/packaging/test_readme.py

fuzz: $(STAMP)
	NGRAMSPEC_MAX_EXAMPLES=2000 $(BIN)/python -m pytest tests/property

asan: $(STAMP)
	rm -rf build/asan && mkdir -p build/asan
	cp -r ext ngramspec tests benchmarks setup.py pyproject.toml README.md LICENSE build/asan
	rm -f build/asan/ngramspec/*.so
	cd build/asan && NGRAMSPEC_SANITIZE=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	cd build/asan && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 PYTHONPATH=. \
		../../$(BIN)/python -m pytest tests/unit tests/property tests/threads tests/compat -k "not leaking"

clean:
	rm -rf $(VENV) build dist *.egg-info ngramspec/*.so
