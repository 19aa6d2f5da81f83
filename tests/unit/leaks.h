/*
 * Every unit test checks what it leaves behind. Criterion passes a test that leaks: LeakSanitizer prints at exit and the
 * status stays 0. So each suite is declared as
 *
 *	TestSuite(name, .init = leaks_before, .fini = leaks_after);
 *
 * and leaks_after fails a test that leaks memory (in builds with AddressSanitizer) or a file descriptor (in all).
 */
#ifndef IPCC_TESTS_LEAKS_H
#define IPCC_TESTS_LEAKS_H

#include <stddef.h>

/* Remembers the open fds. */
void leaks_before(void);
/* Fails the running test when leaks_find finds anything. */
void leaks_after(void);

/* What is new since leaks_before: writes a description to `text` and returns 1, or returns 0. */
int leaks_find(char *text, size_t bytes);
/* Whether this build can see leaked memory at all. */
int leaks_memory_checked(void);

#endif
