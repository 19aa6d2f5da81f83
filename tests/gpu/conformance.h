/* Inside tests/gpu/conformance*.c only: how a check is made and told, and what several of them need. */
#ifndef IPCC_TESTS_GPU_CONFORMANCE_H
#define IPCC_TESTS_GPU_CONFORMANCE_H

#include "tests/gpu/raw.h"

#include <sys/types.h>

#define MIB ((size_t)1 << 20)

/* One line; what does not hold is counted. */
void check(const char *what, int holds, const char *detail);
#define IS(what, expression, expected)                                                                                 \
	do {                                                                                                           \
		cu_result got = (expression);                                                                          \
		check(what, got == (expected), raw_error(got));                                                        \
	} while (0)
/* Not relied on, but good to know. */
void note(const char *what, cu_result result);

/* Memory of the first GPU that can be exported; and what follows of it. */
cu_allocation allocation(void);
cu_memory create(size_t bytes);
int export(cu_memory memory);
cu_memory import(int fd);
cu_result allow(cu_pointer at, size_t bytes, int flags);
cu_pointer map(cu_memory memory, size_t bytes, int flags);
void unmap(cu_pointer at, size_t bytes);
/* 0xdeadbeef when it cannot be read. */
unsigned word_at(cu_pointer at);
void put_word(cu_pointer at, unsigned word);

/* This program again, playing `role` with an fd of this process; and its exit status. */
pid_t start(const char *role, int fd);
int ended(pid_t pid);

/* conformance_memory.c */
void check_memory(void);
void check_mapping(void);
void check_accounting(void);
void check_pinning(void);

/* conformance_process.c */
int role_creator(int socket);
int role_offender(int fd);
int role_writer(int fd);
int role_blind(int fd);
void check_read_only(void);
void check_survival(void);
void check_context(void);

/* conformance_legacy.c */
int role_legacy(int socket);
int role_exporter(int socket);
int role_hidden(int socket);
void check_legacy_handles(void);

#endif
