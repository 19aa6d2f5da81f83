# Tests. `make test` runs everything that needs no multi-gigabyte download; each part can be run alone.
#
#   make test-unit       Criterion, one binary over all parts
#   make test-system     pytest: real processes, real second users, a real kernel (root); builds the rest that it needs
#   make test-engines  real vLLM on the CPU through the plugin, in an environment of its own (6 GB); VLLM=0.30.0 another version
#   make test-fuzz       libFuzzer over parser and validator for FUZZ_SECONDS (clang)
#   make coverage        line coverage by unit and system tests (gcovr), the validator's first

VENV := .venv-test
FAKE := $(BUILD)/tests/fake/libcuda.so.1
TSAN_BUILD := $(BUILD)/tsan

# One Criterion binary over every part; main functions stay out.
parts_objects := $(call objects,$(filter-out broker/main.c,$(broker_src)) $(link_src) $(client_src) $(loader_src) \
	$(device_src) $(manifest_src))
parts_libs := -lxxhash -ljansson -luring -linih -lseccomp
$(BUILD)/tests/unit: $(call objects,$(unit_src)) $(parts_objects)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ -lcriterion $(parts_libs)

# Programs with a main of their own: what Criterion is in the way of.
$(BUILD)/tests/%: $(BUILD)/obj/tests/tsan/%.o $(parts_objects)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ $(parts_libs)
$(BUILD)/tests/bench-%: $(BUILD)/obj/tests/bench/%.o $(parts_objects)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ $(parts_libs)
$(BUILD)/tests/gpu/conformance: $(call objects,$(wildcard tests/gpu/conformance*.c) tests/gpu/raw.c)
$(BUILD)/tests/gpu/actor: $(call objects,$(wildcard tests/gpu/actor*.c) tests/gpu/raw.c tests/gpu/weights.c $(client_src) $(link_src) \
	$(device_src) $(manifest_src))
$(BUILD)/tests/gpu/pair: $(call objects,tests/gpu/pair.c tests/gpu/raw.c tests/gpu/weights.c $(client_src) $(link_src) \
	$(device_src) $(manifest_src))
gpu_programs := $(BUILD)/tests/gpu/conformance $(BUILD)/tests/gpu/actor $(BUILD)/tests/gpu/pair
$(gpu_programs):
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $(filter %.o,$^) $(parts_libs) -ldl
gpu_programs += $(BUILD)/tests/bench-loader
.PHONY: gpu-programs
gpu-programs: all $(gpu_programs) $(FAKE)
.PRECIOUS: $(BUILD)/obj/%.o

# Makes a write fail on demand, see the source.
$(BUILD)/tests/fault.so: tests/fault/fault.c
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -O2 -fPIC -shared -o $@ $< -ldl

# A GPU driver without a GPU, see tests/fake-cuda/fake.h. Not sanitized: it is opened into programs of any kind.
# The stubs of HIP and MACA are the same source with other names in front.
fake_base := $(patsubst %,tests/fake-cuda/%.c,base memory mapping legacy transfer)
$(FAKE): $(fake_base)
$(BUILD)/tests/fake-hip/libamdhip64.so: $(fake_base) tests/fake-cuda/hip.c
$(BUILD)/tests/fake-maca/libmcruntime.so: $(fake_base) tests/fake-cuda/maca.c
fakes := $(FAKE) $(BUILD)/tests/fake-hip/libamdhip64.so $(BUILD)/tests/fake-maca/libmcruntime.so
$(fakes): $(wildcard tests/fake-cuda/*.h) loader/device/cuda_abi.h
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -I. -Wall -Wextra -Wshadow -O2 -g -fPIC -shared -fvisibility=hidden \
		-Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -pthread

# The declarations in cuda_abi.h are those of the real cuda.h, where a toolkit is installed.
CUDA_HOME ?= /usr/local/cuda
.PHONY: test-abi
test-abi:
	$(Q)if [ -e $(CUDA_HOME)/include/cuda.h ]; then \
		$(CC) -std=gnu11 -I. -isystem $(CUDA_HOME)/include -Wall -Werror -fsyntax-only tests/abi/cuda.c && \
		echo "  ABI      the same as in $(CUDA_HOME)/include/cuda.h"; \
	else echo "  SKIP     no cuda.h in $(CUDA_HOME)/include to compare loader/device/cuda_abi.h with"; fi
# Shows a folder with faults, see the source.
$(BUILD)/tests/faultfs: tests/fault/faultfs.c
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Wall -Wextra -O2 $$(pkg-config --cflags fuse3) \
		-o $@ $< $$(pkg-config --libs fuse3)

$(VENV)/ready: tests/requirements.txt
	$(call say,VENV,$(VENV))
	$(Q)python3 -m venv $(VENV)
	$(Q)$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(Q)touch $@

.PHONY: test test-unit test-system test-bpf
# Tracing last and alone: it sees what else goes on.
test: test-abi test-unit test-system
	$(Q)$(MAKE) --no-print-directory test-bpf

test-unit: $(BUILD)/tests/unit
	$(call say,TEST,unit)
	$(Q)$(BUILD)/tests/unit --jobs 2

# ThreadSanitizer excludes the other sanitizers, so its programs are a build of their own.
test-system: all $(VENV)/ready $(BUILD)/tests/fault.so $(BUILD)/tests/faultfs $(fakes) $(gpu_programs)
	$(Q)$(MAKE) --no-print-directory BUILD=$(TSAN_BUILD) SANITIZE=thread $(TSAN_BUILD)/tests/client $(TSAN_BUILD)/tests/fill
	$(call say,TEST,system)
	$(Q)IPC_CACHE_BUILD=$(BUILD) $(VENV)/bin/python -m pytest -q -rs tests/system $(PYTEST)

# Tracing, on the real kernel; what is missing (root, BTF, bpftrace ...) is said in the summary of skipped tests.
$(BUILD)/tests/bpf/emit: tests/bpf/emit.c bpf/probes.h
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -I. -Wall -Wextra -O2 -o $@ $< -pthread
test-bpf: all $(VENV)/ready $(BUILD)/tests/bpf/emit $(FAKE)
	$(call say,TEST,bpf)
	$(Q)IPC_CACHE_BUILD=$(BUILD) $(VENV)/bin/python -m pytest -q -rs tests/bpf $(PYTEST)

# The pinned vLLM, or another one beside it. PYTEST selects, as in PYTEST='-k strict' or PYTEST='-m slow'.
ENGINES_VENV := .venv-engines$(if $(VLLM),-$(VLLM))
$(ENGINES_VENV)/ready: tests/engines/install tests/engines/requirements.txt tests/engines/overrides.txt
	$(call say,VENV,$(ENGINES_VENV))
	$(Q)rm -rf $(ENGINES_VENV)
	$(Q)tests/engines/install $(ENGINES_VENV) $(VLLM)
	$(Q)touch $@
.PHONY: test-engines
test-engines: all $(ENGINES_VENV)/ready
	$(call say,TEST,engines)
	$(Q)IPC_CACHE_BUILD=$(BUILD) $(ENGINES_VENV)/bin/python -m pytest -q -rs $(if $(findstring -m,$(PYTEST)),,-m 'not slow') tests/engines $(PYTEST)

# vLLM's load phase and speed on a 2 GiB model, cold, warm and attached; takes 8 GB of memory and some minutes.
.PHONY: bench-vllm
bench-vllm: all $(ENGINES_VENV)/ready
	$(Q)IPC_CACHE_BUILD=$(BUILD) $(ENGINES_VENV)/bin/python tests/bench/vllm.py $(BENCH)

.PHONY: coverage
coverage:
	$(Q)$(MAKE) --no-print-directory BUILD=build/coverage COVERAGE=1 CFLAGS='-O0 -g' test
	$(Q)gcovr --root . --object-directory build/coverage --print-summary --filter 'manifest/validate.*\.c'
	$(Q)gcovr --root . --object-directory build/coverage --print-summary --exclude 'tests/.*'

# libFuzzer, a minute each by default; seeds are the parser cases and manifests that the unit tests accept.
FUZZ_SECONDS ?= 60
FUZZ_BUILD := build/fuzz
.PHONY: test-fuzz fuzzers
test-fuzz: $(VENV)/ready
	$(Q)$(MAKE) --no-print-directory BUILD=$(FUZZ_BUILD) CC=clang SANITIZE=address,undefined,fuzzer-no-link fuzzers
	$(Q)$(VENV)/bin/python tests/fuzz/seeds.py $(FUZZ_BUILD)/corpus
	$(Q)for f in manifest safetensors; do \
		$(FUZZ_BUILD)/tests/fuzz-$$f -max_total_time=$(FUZZ_SECONDS) -max_len=16384 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ_BUILD)/$$f- $(FUZZ_BUILD)/corpus/$$f || exit 1; done
fuzzers: $(BUILD)/tests/fuzz-manifest $(BUILD)/tests/fuzz-safetensors
$(BUILD)/tests/fuzz-%: $(BUILD)/obj/tests/fuzz/%.o $(parts_objects)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(parts_libs)

# One table, build/bench-loader.csv and .png; PEERS names a Python that has the other loaders (tests/bench/peers.py).
.PHONY: bench-loader
bench-loader: $(BUILD)/tests/bench-loader $(VENV)/ready
	$(Q)$(or $(PEERS),$(VENV)/bin/python) tests/bench/loader.py --build $(BUILD) $(if $(PEERS),--python $(PEERS)) $(BENCH)
