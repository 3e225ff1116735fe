# make install | test | test-answers | test-slow | test-all | test-kill | mutants | demo | docs | lint | bench | results | lock | clean
PYTHON ?= python3
TENSORFLOW ?=
VENV := .venv$(TENSORFLOW:%=-tensorflow-%)
BIN := $(VENV)/bin
TEXT ?=
FAMILY ?= bert
# Several processes: tests spend most of their time in one thread, and wait. A file's tests stay together, as they share models;
# tests/conftest.py sets the order of the files.
PYTEST_FLAGS ?= --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.PHONY: install test test-answers test-slow test-all test-kill mutants demo docs lint format bench results lock clean
install: $(STAMP)

# constraints.txt holds the versions of everything for users and tests alike: the tests see what users run.
# TENSORFLOW=2.21: another TensorFlow, in an environment of its own, without packages that need the pinned one.
OTHER := $(if $(TENSORFLOW),/^(tensorflow|tf-|tensorboard|h5py)[a-z-]*==/d)
PINS := $(if $(TENSORFLOW),"tensorflow==$(TENSORFLOW).*" "tensorflow-text==$(TENSORFLOW).*")
$(STAMP): requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "bert-tf needs Python 3.11, 3.12 or 3.13, this is %d.%d: make PYTHON=python3.12 install" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --upgrade pip
	sed -E '$(OTHER)' requirements.txt > $(VENV)/requirements.txt
	sed -E '$(OTHER)' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install -c $(VENV)/constraints.txt -r $(VENV)/requirements.txt $(PINS) -e .
	touch $@

# Further requirements of tests and checks: pytest, ruff, pyrefly, and transformers with PyTorch as an oracle.
$(DEV_STAMP): $(STAMP) requirements-dev.txt
	grep -v '^-r' requirements-dev.txt > $(VENV)/requirements-dev.txt
	$(BIN)/pip install -c $(VENV)/constraints.txt -r $(VENV)/requirements-dev.txt
	$(if $(TENSORFLOW),$(BIN)/pip install --no-deps -c constraints.txt tf-models-official)  # scores of SQuAD
	touch $@

test: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 3 $(PYTEST_FLAGS) -m "not slow"

# Predictors in an environment without TensorFlow, as requirements-answers.txt says.
test-answers: $(DEV_STAMP)
	$(PYTHON) -m venv .venv-answers
	.venv-answers/bin/pip install -c constraints.txt -r requirements-answers.txt
	.venv-answers/bin/pip install --no-deps -e .
	ANSWERS_PYTHON=.venv-answers/bin/python $(BIN)/python -m pytest -k no_tensorflow tests/serving/test_onnx_runtime.py

# The long tests, each of which has a small form in `make test`, and again those that hold numbers against the originals';
# here TensorFlow and XLA compile with their default settings.
# SLICE=2/4: the second quarter of them, by time. COMMITS=20: with it those in the folders of tests that mirror what the
# last 20 commits changed, up to four minutes of one process.
test-slow: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS" $(BIN)/python -m pytest -n 2 $(PYTEST_FLAGS) -m "(slow or numbers) and not exhaustive" \
	  $(SLICE:%=--slice=%) $(COMMITS:%=--touched-by=%)

# The same with all cases of tests that have many of one kind: an hour or more.
test-all: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS" $(BIN)/python -m pytest -n 2 $(PYTEST_FLAGS) -m "slow or numbers"

# Scripts killed at random moments and started again leave what undisturbed runs leave.
test-kill: $(DEV_STAMP)
	$(BIN)/python tests/kill_campaign.py --kills=500

# Planted faults, each of which some test must see. FAULTS=electra.py: those with this in the name of the file or the tests.
mutants: $(DEV_STAMP)
	$(BIN)/python tests/mutants.py $(FAULTS)

demo: install
	$(BIN)/python -m demo --family=$(FAMILY) --text="$(TEXT)"

# The pages, and the API from the docstrings, in build/docs; a broken link is an error. The front page is README.md, also
# in Korean.
docs: $(DEV_STAMP)
	$(BIN)/python docs/site_pages.py build/pages
	$(BIN)/zensical build --strict --clean

# Types are checked in full in the folders that pyproject.toml names; elsewhere only what can't be meant, as names that are
# not there. A starred argument is taken to fill them all: bad-keyword-argument.
lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --preset basic --ignore bad-keyword-argument \
	  'bert_tf/**/*.py' 'demo/*.py' 'experiments/*.py' '*.py'

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Runs the commands of docs/benchmarks.md and docs/results.md whose files are in the folder DATA (those of the latter take
# hours), adds what they find to docs/measured/, and writes the tables of both pages anew. BENCH=save.py: commands with
# this in them; MACHINE=A: the letter of this machine in docs/benchmarks.md.
bench results: $(DEV_STAMP)
	$(BIN)/python benchmarks/measured.py --page=$(@:bench=benchmarks) --run="$(BENCH)" --data="$(or $(DATA),.)" \
	  $(MACHINE:%=--machine=%)

# Resolves requirements-dev.txt anew, with the newest versions that fit, for Python 3.11 to 3.13 on every system. Without
# hashes: pip would then refuse this folder itself and builds of PyTorch for one kind of processor.
lock: $(STAMP)
	$(BIN)/pip install uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-annotate \
	  --custom-compile-command "make lock" --output-file constraints.txt requirements-dev.txt

clean:
	rm -rf .venv .venv-* *.egg-info build dist demo_output .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
