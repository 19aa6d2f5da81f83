# ipc-cache: one non-recursive Makefile.
#
#   make                 everything, into build/
#   make demo            load a real model, attach, kill, attach again
#   make test            every test that needs no multi-gigabyte download
#   make install         DESTDIR= PREFIX=/usr/local
#   make USDT=0 BPF=0    without probes, without ipc-cache-lat
#   make V=1             show the commands; CFLAGS, CPPFLAGS, LDFLAGS and CC are yours
#   make SANITIZE=address,undefined BUILD=build/asan ...

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

VERSION := $(shell cat VERSION)
PREFIX ?= /usr/local
BUILD ?= build
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config
CFLAGS ?= -O2 -g
# USDT=0 builds without probes (bpf/probes.h); without systemtap's sys/sdt.h there are none either.
USDT ?= 1

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-8s %s\n' '$(1)' '$(2)')

all_CFLAGS := -std=gnu11 -fPIC -pthread -fvisibility=hidden -Wall -Wextra -Wshadow -Wstrict-prototypes \
	-Wmissing-prototypes -Wno-missing-field-initializers $(CFLAGS)
all_CPPFLAGS := -I. -D_GNU_SOURCE -DIPCC_VERSION='"$(VERSION)"' $(CPPFLAGS)
all_LDFLAGS := -pthread -Wl,--as-needed $(LDFLAGS)
ifeq ($(USDT),0)
all_CPPFLAGS += -DNO_USDT
endif
ifdef SANITIZE
all_CFLAGS += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
all_LDFLAGS += -fsanitize=$(SANITIZE)
endif
ifdef COVERAGE
all_CFLAGS += --coverage
all_LDFLAGS += --coverage
endif
# Their run-time libraries open files, which the broker's sandbox forbids.
ifneq ($(SANITIZE)$(COVERAGE),)
all_CPPFLAGS += -DNO_SANDBOX
endif
ifdef WERROR
all_CFLAGS += -Werror
endif

# Sources by part; the folder listing is the architecture.
manifest_src := $(wildcard manifest/*.c)
device_src := $(wildcard loader/device/*.c)
loader_src := $(wildcard loader/*.c)
link_src := $(wildcard broker/link/*.c)
client_src := $(wildcard broker/client/*.c)
broker_src := $(wildcard broker/*.c)
tools_src := $(wildcard tools/*.c)
unit_src := $(wildcard tests/unit/*.c)

comma := ,
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

.PHONY: all
all: $(BUILD)/ipc-cached $(BUILD)/ipc-cache $(BUILD)/libipc_cache.so

$(BUILD)/ipc-cached: $(call objects,$(broker_src) $(link_src) $(manifest_src))
	$(call say,LD,$@)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ -lxxhash -linih -lseccomp

$(BUILD)/ipc-cache: $(call objects,$(tools_src) $(loader_src) $(client_src) $(link_src) $(device_src) $(manifest_src))
	$(call say,LD,$@)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ -lxxhash -ljansson -luring

# The library; $(soname) is what programs look for at run time, also in the build folder.
soname := libipc_cache.so.$(firstword $(subst ., ,$(VERSION)))
library_map := broker/client/libipc_cache.map
$(BUILD)/libipc_cache.so: $(call objects,$(client_src) $(link_src) $(device_src) $(manifest_src)) $(library_map)
	$(call say,LD,$@)
	$(Q)$(CC) $(all_LDFLAGS) -shared -Wl,-soname,$(soname) -Wl,--version-script,$(library_map) $(if $(SANITIZE),,-Wl$(comma)-z$(comma)defs) \
		-o $@ $(filter %.o,$^) -lxxhash
	$(Q)ln -sf libipc_cache.so $(BUILD)/$(soname)

$(BUILD)/obj/%.o: %.c VERSION
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(all_CPPFLAGS) $(all_CFLAGS) -MMD -MP -c -o $@ $<

# Installs its own dependencies and builds, so it has no prerequisites here.
.PHONY: demo
demo:
	@BUILD='$(BUILD)' tools/demo $(if $(MODEL),'$(MODEL)')

# What git tracks of these; a check of nothing must not pass.
tracked = $(or $(sort $(shell git ls-files $(1))),$(error no tracked files: this needs git, and a clone of its own user))
.PHONY: lint shellcheck
lint: shellcheck
	$(Q)clang-format --dry-run -Werror $(call tracked,'*.c' '*.h')
	$(Q)mandoc -T lint -W warning tools/man/*.[1-8]
# Every script is known by its first line; completions have none.
shellcheck:
	$(Q)shellcheck $(shell awk '/^#!.*sh$$/ { print FILENAME } { nextfile }' $(call tracked)) tools/completions/*.bash

include bpf/bpf.mk
include tools/install.mk
include tests/tests.mk
include tests/python.mk

.PHONY: clean
clean:
	$(Q)rm -rf $(BUILD)

-include $(shell test -d $(BUILD)/obj && find $(BUILD)/obj -name '*.d')
