# ipc-cache-lat: built where clang, bpftool, libbpf and jansson are; BPF=0 leaves it out. What is missing is said once.

BPF ?= 1
BPF_CLANG ?= clang
BPFTOOL ?= $(firstword $(shell command -v bpftool) $(wildcard /usr/sbin/bpftool /sbin/bpftool))
bpf_missing := $(strip \
	$(if $(shell command -v $(BPF_CLANG)),,clang) \
	$(if $(BPFTOOL),,bpftool) \
	$(if $(shell $(PKG_CONFIG) --exists 'libbpf >= 1.0' && echo yes),,libbpf) \
	$(if $(filter aarch64 x86_64,$(shell uname -m)),,an x86-64 or arm64 processor))

lat_src := $(wildcard bpf/lat/[!.]*.c)
lat_src := $(filter-out %.bpf.c,$(lat_src))
lat_skeletons := $(BUILD)/bpf/probes.skel.h $(BUILD)/bpf/kernel.skel.h
bpf_arch := $(if $(filter aarch64,$(shell uname -m)),arm64,x86)
bpf_include := $(addprefix -I/usr/include/,$(shell $(CC) -print-multiarch 2>/dev/null))

ifneq ($(BPF),0)
ifeq ($(bpf_missing),)
all: $(BUILD)/ipc-cache-lat
have_lat := yes
else ifeq ($(MAKELEVEL),0)
$(info ipc-cache-lat is left out: $(bpf_missing) not found (tools/install-deps trace, or BPF=0 to have it so))
endif
endif

.SECONDARY: $(BUILD)/bpf/probes.bpf.o $(BUILD)/bpf/kernel.bpf.o
$(BUILD)/bpf/%.bpf.o: bpf/lat/%.bpf.c $(wildcard bpf/lat/*.h)
	$(call say,BPF,$<)
	@mkdir -p $(@D)
	$(Q)$(BPF_CLANG) -target bpf -O2 -g -D__TARGET_ARCH_$(bpf_arch) -I. $(bpf_include) -Wall -Wextra -Werror -c -o $@ $<
$(BUILD)/bpf/%.skel.h: $(BUILD)/bpf/%.bpf.o
	$(Q)$(BPFTOOL) gen skeleton $< name lat_$* >$@

$(call objects,bpf/lat/session.c): $(lat_skeletons)
$(call objects,bpf/lat/session.c): private all_CPPFLAGS += -I$(BUILD)

$(BUILD)/ipc-cache-lat: $(call objects,$(lat_src))
	$(call say,LD,$@)
	$(Q)$(CC) $(all_LDFLAGS) -o $@ $^ -lbpf -ljansson
