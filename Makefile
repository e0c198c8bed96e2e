# make demo and make test set everything up in .venv by themselves; nothing is redone needlessly.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of Python processes; without bytecode each of them compiles torch for seconds.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles a module when it is first imported; most never are.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
SUFFIXES := -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h'
NATIVE := $(shell find csrc $(SUFFIXES))
CLANG_FORMAT_FILES := $(NATIVE) $(shell find tests $(SUFFIXES))

# pip cannot install a project's requirements without building it, and building needs them. Names of
# extras follow.
define PRINT_REQUIREMENTS
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
extras = project['optional-dependencies']
print(*project['dependencies'], *(x for name in sys.argv[1:] for x in extras[name]), sep='\n')
endef
export PRINT_REQUIREMENTS

# What setup.py's choice depends on besides files. torch itself takes seconds to import.
define PRINT_CHOICE
from importlib.util import find_spec
from pathlib import Path
import os, runpy, shutil
print({name: os.environ.get(name) for name in ('BWT_CUDA', 'BWT_DEBUG', 'BWT_SANITIZE')})
torch = runpy.run_path(Path(find_spec('torch').origin).with_name('version.py'))
print(torch['__version__'], torch['cuda'])
if torch['cuda'] or os.environ.get('BWT_CUDA') == '1':
    names = ('TORCH_CUDA_ARCH_LIST', 'CUDA_HOME', 'CUDA_PATH')
    print({name: os.environ.get(name) for name in names}, shutil.which('nvcc'))
endef
export PRINT_CHOICE

# $(call phase,WHAT,LOG,COMMAND): a line that says what is done, and how many seconds it took. What
# the command prints goes to a log, which is shown if it fails. Under make -j, when others print as
# well, the line comes as a whole.
TOGETHER = $(filter -j%,$(MAKEFLAGS))
define phase
@$(if $(TOGETHER),,printf '%s ... ' '$(1)';) begun=$$(date +%s); \
	if { $(3); } > '$(2)' 2>&1; then \
		echo "$(if $(TOGETHER),$(1) ... )$$(($$(date +%s) - begun)) s"; \
	else \
		code=$$?; echo "$(if $(TOGETHER),$(1) ... )failed:"; \
		{ cat '$(2)'; echo '(kept in $(2))'; } >&2; exit $$code; \
	fi
endef

# What the sanitized library needs loaded before Python: it is not linked into Python itself.
SANITIZE_OPS := add_bias add_rms_norm attention bijection_posterior gelu hmm_filter rms_norm selective_scan
SANITIZE_TESTS := $(foreach op,$(SANITIZE_OPS),$(wildcard tests/ops/test_$(op)*.py)) \
	$(addprefix tests/,ops/test_simd_levels.py ops/test_strides.py csrc/test_raw_ops.py)
PRELOADED = $(foreach name,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))

.PHONY: demo test test-all test-more lint format build tools rebuild bench sanitize fuzz check-torch check-cuda check-kernels gpu clean FORCE

demo: build
	$(BIN)/bwt train bijection --preset quick --report

# Tests run in tiers, which are pytest markers: see CONTRIBUTING.md. One process on each core.
PYTEST := $(BIN)/python -P -m pytest -n auto --dist worksteal $(PYTEST_OPTIONS)
EMULATED_GPU := $(BIN)/python -P tests/emulator/gpu -n auto --dist worksteal $(PYTEST_OPTIONS)

# The default tier, to run before a commit.
test: build lint
	$(PYTEST) -m "not slow and not emulated and not build"

# All tiers, as .ci/run runs them.
test-all:
	$(MAKE) test
	$(MAKE) test-more

# The tiers slow, emulated and build, and the GPU tests on an emulated GPU.
test-more: build $(VENV)/.peers
	$(PYTEST) -m "slow or emulated or build"
	$(EMULATED_GPU)

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CLANG_FORMAT_FILES)

format: $(VENV)/.tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CLANG_FORMAT_FILES)

build: $(VENV)/.built

tools: $(VENV)/.tools

rebuild:
	rm -f $(VENV)/.built
	$(MAKE) build

# Builds against other releases of torch, in environments of their own under build/.
check-torch: $(VENV)/.dependencies
	$(BIN)/python tests/packaging/builds/check_torch.py $(RELEASES)

# ARCHS="80 90" restricts the architectures: all of them are 5,000 kernels, about a second each.
check-cuda: $(VENV)/.dependencies
	$(BIN)/python tests/packaging/builds/check_cuda.py $(ARCHS)

# Compiles every entry of kernels/configs.py with the Triton that is installed: registers, stack and
# shared memory of each, and an exit code. As long as check-cuda; ARCHS="75 120" restricts it, too, and
# HARDEST=1 to the forms that do most.
check-kernels: $(VENV)/.dependencies
	$(BIN)/python -P -m bwt.kernels.aot --summary $(if $(ARCHS),--arch $(ARCHS)) $(if $(HARDEST),--hardest)

bench: build
	$(call phase,installing what is compared with,$(VENV)/bench.log,\
		$(BIN)/pip install --quiet -e '.[bench]' --no-build-isolation)
	$(BIN)/bwt bench

sanitize: build $(VENV)/.tools
	BWT_SANITIZE=1 BWT_CUDA=0 $(BIN)/python setup.py --quiet build --build-base build/sanitize \
		--build-lib build/sanitize/lib
	LD_PRELOAD="$(PRELOADED)" PYTHONPATH=build/sanitize/lib ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		$(BIN)/python -P -m pytest $(SANITIZE_TESTS)

SECONDS ?= 600
SEED ?= 0
fuzz: build $(VENV)/.tools
	$(BIN)/python -P tests/fuzz.py --seconds $(SECONDS) --seed $(SEED)

# Everything that waits for a GPU. Says in one line that there is none before it builds anything.
gpu:
	@$(PYTHON) benchmarks/gpu.py $(GPU_OPTIONS)

$(VENV)/bin/python:
	@mkdir -p $(VENV)
	$(call phase,setting up $(VENV),$(VENV)/venv.log,$(PYTHON) -m venv $(VENV))

# Dependencies follow pyproject.toml, the native library also the sources.
$(VENV)/.dependencies: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" build > $@.txt
	$(call phase,installing packages,$(VENV)/packages.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# What a demo can do without.
$(VENV)/.tools: $(VENV)/.dependencies
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" test lint > $@.txt
	$(call phase,installing tools for tests and lint,$(VENV)/tools.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# Packages that the tier slow compares with.
$(VENV)/.peers: $(VENV)/.tools | $(VENV)/.built
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" witness bench ray notebook > $@.txt
	$(call phase,installing packages to compare with,$(VENV)/peers.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# Written only when it changes: nvcc or another torch that comes later is a reason to build again.
$(VENV)/.choice: $(VENV)/.dependencies FORCE
	@$(BIN)/python -c "$$PRINT_CHOICE" > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Two pips must not work at a time: tools come first where they are wanted.
WITH_TOOLS := tools test test-more lint format sanitize fuzz
$(VENV)/.built: $(VENV)/.dependencies $(VENV)/.choice setup.py $(NATIVE) \
		| $(if $(filter $(WITH_TOOLS),$(MAKECMDGOALS)),$(VENV)/.tools)
	$(call phase,building the native library,$(VENV)/build.log,\
		$(PIP_INSTALL) --no-deps --no-build-isolation -e .)
	@touch $@

clean:
	rm -rf build *.egg-info bwt/*.so $(VENV)
