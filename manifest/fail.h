/* How errors are made: fill a struct ipcc_error and return its code in one expression. */
#ifndef IPCC_MANIFEST_FAIL_H
#define IPCC_MANIFEST_FAIL_H

#include "manifest/error.h"

/* Store `code` and the formatted message; return `code`. `err` may be NULL. */
int fail(struct ipcc_error *err, enum ipcc_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: the message gets ": " and the text of `sys_errno` appended, and the code is
 * IPCC_FAILED, or IPCC_NO_MEMORY for ENOMEM. `sys_errno` is positive. */
int fail_errno(struct ipcc_error *err, int sys_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A mismatch: stores the three strings (cut where too long) and the message. */
int fail_mismatch(struct ipcc_error *err, const char *field, const char *expected, const char *got, const char *format,
		  ...) __attribute__((format(printf, 5, 6)));

/* A code as the exit status of a program: itself up to IPCC_NO_BROKER, the nearest of those for the others. */
int exit_status(int code);

/* Put "prefix: " before the message that `err` holds already; returns its code. */
int fail_within(struct ipcc_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
