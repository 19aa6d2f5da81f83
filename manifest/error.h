/*
 * Error codes and the error object that every fallible function of the project fills.
 *
 * One enumeration serves three places: the return value of library functions, the `code` of a broker's reply, and (up
 * to IPCC_NO_BROKER) the exit status of the `ipc-cache` command. Numbers are an ABI: they are never reused.
 *
 * Convention: a function that takes a `struct ipcc_error *` returns 0 (IPCC_OK) or the code that it stored there. The
 * pointer may be NULL when the caller wants the code alone. Output parameters are untouched on failure.
 */
#ifndef IPCC_MANIFEST_ERROR_H
#define IPCC_MANIFEST_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum ipcc_code {
	IPCC_OK = 0,
	IPCC_FAILED = 1,    /* the system refused something; sys_errno says what */
	IPCC_USAGE = 2,	    /* the caller's arguments make no sense */
	IPCC_NOT_FOUND = 3, /* no such model, file, tensor or device */
	IPCC_MISMATCH = 4,  /* found, but a field differs: see field, expected, got */
	IPCC_INVALID = 5,   /* malformed or damaged data */
	IPCC_REFUSED = 6,   /* a rule, a limit or a policy forbids it */
	IPCC_NO_BROKER = 7, /* nobody listens, or not the one that we trust */
	IPCC_BUSY = 8,	    /* somebody else is at it: another publisher, or lease holders */
	IPCC_TIMEOUT = 9,
	IPCC_CANCELED = 10,  /* ipcc_cancel() was called */
	IPCC_NO_MEMORY = 11, /* too little memory for what was asked, found before allocating it */
	IPCC_EXISTS = 12,    /* the model is resident already */
	IPCC_PROTOCOL = 13,  /* the peer broke the protocol; the connection is over */
	IPCC_UNKNOWN = 14,   /* whether the source files are the same cannot be told by their metadata */
};

struct ipcc_error {
	int code;	    /* enum ipcc_code */
	int sys_errno;	    /* errno of the call that failed, or 0 */
	char field[64];	    /* IPCC_MISMATCH: which field differs, else empty */
	char expected[256]; /* IPCC_MISMATCH: what the caller asked for */
	char got[256];	    /* IPCC_MISMATCH: what was found */
	char message[1024]; /* one or more sentences: what, where, and what to do; UTF-8, no newline at the end */
};

#ifdef __cplusplus
}
#endif
#endif
