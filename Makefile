# make demo and make test set up .venv first. A step runs again only if its inputs have changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of Python processes. Without bytecode files each of them would compile torch.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles a module when it is first imported, and most modules never are.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
SUFFIXES := -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h'
NATIVE := $(shell find csrc $(SUFFIXES))
CLANG_FORMAT_FILES := $(NATIVE) $(shell find tests $(SUFFIXES))

# Print the requirements of the project and of the extras named as arguments. pip cannot install
# them without building the project, which needs them.
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

# Print what setup.py's choice depends on besides files. Importing torch would take seconds.
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

# $(call phase,WHAT,LOG,COMMAND) runs a command and prints one line with its name and its seconds.
# The output goes to a log, which is printed if the command fails. Under make -j the line is printed
# at once, as other targets print as well.
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

# PRELOADED are the libraries of the sanitizers, which Python is not linked with.
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

# Builds against other releases of torch, each in its own environment under build/.
check-torch: $(VENV)/.dependencies
	$(BIN)/python tests/packaging/builds/check_torch.py $(RELEASES)

# Builds the extension with CUDA and compiles 5,000 kernels, about a second each. ARCHS="80 90"
# restricts the architectures.
check-cuda: $(VENV)/.dependencies
	$(BIN)/python tests/packaging/builds/check_cuda.py $(ARCHS)

# Compiles every entry of kernels/configs.py with the installed Triton and reports registers, stack
# and shared memory. Takes as long as check-cuda. ARCHS="75 120" restricts the architectures,
# HARDEST=1 the forms to those that do most.
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

# Checks, tests, tunes and benchmarks on a GPU. Without one it stops before it builds anything.
gpu:
	@$(PYTHON) benchmarks/gpu.py $(GPU_OPTIONS)

$(VENV)/bin/python:
	@mkdir -p $(VENV)
	$(call phase,setting up $(VENV),$(VENV)/venv.log,$(PYTHON) -m venv $(VENV))

# Dependencies are installed again when pyproject.toml changes, the native library also when a source
# changes.
$(VENV)/.dependencies: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" build > $@.txt
	$(call phase,installing packages,$(VENV)/packages.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# Packages for tests and lint, which make demo does not need.
$(VENV)/.tools: $(VENV)/.dependencies
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" test lint > $@.txt
	$(call phase,installing tools for tests and lint,$(VENV)/tools.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# Packages that tests of the tier slow compare with.
$(VENV)/.peers: $(VENV)/.tools | $(VENV)/.built
	@$(BIN)/python -c "$$PRINT_REQUIREMENTS" witness bench ray notebook > $@.txt
	$(call phase,installing packages to compare with,$(VENV)/peers.log,$(PIP_INSTALL) -r $@.txt)
	@touch $@

# Written only when its content changes: nvcc or another torch, installed later, causes a new build.
$(VENV)/.choice: $(VENV)/.dependencies FORCE
	@$(BIN)/python -c "$$PRINT_CHOICE" > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Two pips must not run at the same time: tools are installed first where they are needed.
WITH_TOOLS := tools test test-more lint format sanitize fuzz
$(VENV)/.built: $(VENV)/.dependencies $(VENV)/.choice setup.py $(NATIVE) \
		| $(if $(filter $(WITH_TOOLS),$(MAKECMDGOALS)),$(VENV)/.tools)
	$(call phase,building the native library,$(VENV)/build.log,\
		$(PIP_INSTALL) --no-deps --no-build-isolation -e .)
	@touch $@

clean:
	rm -rf build *.egg-info bwt/*.so $(VENV)
