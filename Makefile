# make demo and make test set everything up in .venv by themselves; nothing is redone needlessly.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUFFIXES := -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h'
NATIVE := $(shell find csrc $(SUFFIXES))
CLANG_FORMAT_FILES := $(NATIVE) $(shell find tests $(SUFFIXES))

# pip cannot install a project's requirements without building it, and building needs them.
define PRINT_REQUIREMENTS
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
project = tomllib.load(open('pyproject.toml', 'rb'))['project']
extras = project['optional-dependencies']
print(*project['dependencies'], *extras['build'], *extras['test'], *extras['lint'], sep='\n')
endef
export PRINT_REQUIREMENTS

.PHONY: demo test lint format build bench clean

demo: build
	$(BIN)/bwt train bijection --preset quick

test: build lint
	$(BIN)/python -P -m pytest

lint: $(VENV)/.dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CLANG_FORMAT_FILES)

format: $(VENV)/.dependencies
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CLANG_FORMAT_FILES)

build: $(VENV)/.built

bench: build
	$(BIN)/pip install --quiet -e '.[bench]' --no-build-isolation
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Dependencies follow pyproject.toml, the native library also the sources.
$(VENV)/.dependencies: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -c "$$PRINT_REQUIREMENTS" > $@.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r $@.txt
	touch $@

$(VENV)/.built: $(VENV)/.dependencies setup.py $(NATIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf build *.egg-info bwt/*.so $(VENV)
