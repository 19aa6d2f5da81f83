# The Python package's tests, on the wheel that `pip install ./python` makes.
#
#   make test-python     light: no torch, no numpy; on every Python from 3.10 to 3.13 that tests/python/pythons finds
#   make test-python-asan   the light tests on the newest Python, with the library under gcc's AddressSanitizer
#   make test-torch      with torch, transformers, safetensors and numpy, on the newest of them (about 6 GB of packages)
#   make lint-python     ruff and mypy --strict over the package

PYTHON_VENVS := $(BUILD)/venv
TORCH_VENV := .venv-torch
WHEELS := $(BUILD)/wheel
newest_python = $(shell tests/python/pythons --newest 2>/dev/null)
PIP := -m pip install --quiet --disable-pip-version-check

# pip makes it anew only where the Makefile does; nothing in it depends on the version of Python.
.PHONY: wheel
wheel:
	$(call say,WHEEL,$(WHEELS))
	$(Q)rm -rf $(WHEELS)
	$(Q)$(newest_python) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEELS) ./python

.PHONY: test-python
test-python: wheel $(FAKE)
	$(Q)for python in $$(tests/python/pythons); do \
		venv=$(PYTHON_VENVS)-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
		{ [ -e $$venv/bin/pytest ] || $$python -m venv $$venv; } && \
		$$venv/bin/python $(PIP) pytest==9.2.0 && \
		$$venv/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl && \
		printf '  %-8s %s\n' TEST "python $$($$venv/bin/python -V)" && \
		IPC_CACHE_FAKE_CUDA=$(abspath $(FAKE)) $$venv/bin/python -m pytest -q -rs tests/python $(PYTEST) || exit 1; done

# The sanitizer must be there before Python is; the package's own broker and command stay as they are.
ASAN_BUILD := build/asan
.PHONY: test-python-asan
test-python-asan: wheel $(FAKE)
	$(Q)$(MAKE) --no-print-directory CC=gcc BUILD=$(ASAN_BUILD) SANITIZE=address,undefined $(ASAN_BUILD)/libipc_cache.so
	$(Q)[ -e $(PYTHON_VENVS)-asan/bin/pytest ] || $(newest_python) -m venv $(PYTHON_VENVS)-asan
	$(Q)$(PYTHON_VENVS)-asan/bin/python $(PIP) pytest==9.2.0
	$(Q)$(PYTHON_VENVS)-asan/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl
	$(call say,TEST,python under AddressSanitizer)
	$(Q)LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1:handle_segv=0 PYTHONMALLOC=malloc \
		IPC_CACHE_FAKE_CUDA=$(abspath $(FAKE)) IPC_CACHE_LIBRARY=$(abspath $(ASAN_BUILD))/libipc_cache.so \
		$(PYTHON_VENVS)-asan/bin/python -m pytest -q -rs tests/python $(PYTEST)

$(TORCH_VENV)/ready: tests/torch/requirements.txt
	$(call say,VENV,$(TORCH_VENV))
	$(Q)$(newest_python) -m venv $(TORCH_VENV)
	$(Q)$(TORCH_VENV)/bin/python $(PIP) uv==0.13.9
	$(Q)$(TORCH_VENV)/bin/uv pip install --quiet --python $(TORCH_VENV)/bin/python -r $<
	$(Q)touch $@

.PHONY: test-torch
test-torch: wheel $(TORCH_VENV)/ready $(FAKE)
	$(Q)$(TORCH_VENV)/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl
	$(call say,TEST,torch)
	$(Q)IPC_CACHE_FAKE_CUDA=$(abspath $(FAKE)) $(TORCH_VENV)/bin/python -m pytest -q -rs tests/torch $(PYTEST)

# Attach and bind against the C library and safetensors, in one run; see docs/python.md.
.PHONY: bench-python
bench-python: all wheel $(TORCH_VENV)/ready
	$(Q)$(TORCH_VENV)/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl
	$(Q)$(TORCH_VENV)/bin/python tests/bench/python.py $(BENCH)

$(BUILD)/venv-lint/ready: tests/python/lint-requirements.txt
	$(Q)$(newest_python) -m venv $(@D)
	$(Q)$(@D)/bin/python $(PIP) -r $<
	$(Q)touch $@
.PHONY: lint-python
lint-python: $(BUILD)/venv-lint/ready $(TORCH_VENV)/ready
	$(Q)$(BUILD)/venv-lint/bin/ruff format --check --quiet --config python/pyproject.toml python tests/python tests/torch tests/engines examples
	$(Q)$(BUILD)/venv-lint/bin/ruff check --quiet --config python/pyproject.toml python tests/python tests/torch tests/engines examples
	$(Q)cd python && ../$(BUILD)/venv-lint/bin/mypy --no-error-summary --python-executable ../$(TORCH_VENV)/bin/python
