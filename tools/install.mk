# make install and make uninstall: DESTDIR= is put before every path, PREFIX= is /usr/local.

BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
INSTALL ?= install

pages := $(notdir $(wildcard tools/man/*.[1-8]))
completions := bash-completion/completions
scripts := $(wildcard bpf/*.bt)
# The public header includes these by the same paths under the include folder.
public_headers := manifest/error.h manifest/views.h

pc_values := s|@prefix@|$(PREFIX)|; s|@libdir@|$(LIBDIR)|; s|@includedir@|$(INCLUDEDIR)|; s|@version@|$(VERSION)|

.PHONY: install
install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)$(INSTALL) -D -m 755 $(BUILD)/ipc-cache $(DESTDIR)$(BINDIR)/ipc-cache
	$(Q)$(INSTALL) -D -m 755 $(BUILD)/ipc-cached $(DESTDIR)$(SBINDIR)/ipc-cached
	$(Q)$(INSTALL) -D -m 755 $(BUILD)/libipc_cache.so $(DESTDIR)$(LIBDIR)/libipc_cache.so.$(VERSION)
	$(Q)ln -sf libipc_cache.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(soname)
	$(Q)ln -sf $(soname) $(DESTDIR)$(LIBDIR)/libipc_cache.so
	$(Q)$(INSTALL) -D -m 644 broker/client/ipc_cache.pc.in $(DESTDIR)$(LIBDIR)/pkgconfig/ipc_cache.pc
	$(Q)sed -i '$(pc_values)' $(DESTDIR)$(LIBDIR)/pkgconfig/ipc_cache.pc
	$(Q)$(INSTALL) -D -m 644 broker/client/ipc_cache.h $(DESTDIR)$(INCLUDEDIR)/ipc-cache/ipc_cache.h
	$(Q)$(foreach h,$(public_headers),$(INSTALL) -D -m 644 $(h) $(DESTDIR)$(INCLUDEDIR)/ipc-cache/$(h) &&) true
	$(Q)$(foreach p,$(pages),$(INSTALL) -D -m 644 tools/man/$(p) $(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(p)))/$(p) &&) true
	$(Q)$(INSTALL) -D -m 644 tools/completions/ipc-cache.bash $(DESTDIR)$(DATADIR)/$(completions)/ipc-cache
	$(Q)$(foreach s,$(scripts),$(INSTALL) -D -m 755 $(s) $(DESTDIR)$(DATADIR)/ipc-cache/$(s) &&) true
	$(Q)$(INSTALL) -D -m 755 bpf/ipc-cache-trace $(DESTDIR)$(BINDIR)/ipc-cache-trace
ifdef have_lat
	$(Q)$(INSTALL) -D -m 755 $(BUILD)/ipc-cache-lat $(DESTDIR)$(BINDIR)/ipc-cache-lat
	$(Q)$(INSTALL) -D -m 644 tools/completions/ipc-cache-lat.bash $(DESTDIR)$(DATADIR)/$(completions)/ipc-cache-lat
endif

.PHONY: uninstall
uninstall:
	$(call say,REMOVE,$(DESTDIR)$(PREFIX))
	$(Q)rm -f $(addprefix $(DESTDIR)$(BINDIR)/,ipc-cache ipc-cache-lat ipc-cache-trace) $(DESTDIR)$(SBINDIR)/ipc-cached \
		$(addprefix $(DESTDIR)$(DATADIR)/$(completions)/,ipc-cache ipc-cache-lat) \
		$(addprefix $(DESTDIR)$(LIBDIR)/,libipc_cache.so $(soname) libipc_cache.so.$(VERSION) pkgconfig/ipc_cache.pc) \
		$(foreach p,$(pages),$(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(p)))/$(p))
	$(Q)rm -rf $(DESTDIR)$(INCLUDEDIR)/ipc-cache $(DESTDIR)$(DATADIR)/ipc-cache
