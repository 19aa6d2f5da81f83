/*
 * The probe catalogue: USDT probes of provider `ipc_cache`, one macro for each. ipc-cache-probes(7) explains them; names and
 * arguments are an ABI: new ones are added, none is ever changed.
 *
 * A name is a past event, its object first. Arguments are scalars, or strings that live while the probe runs. A pair that
 * begins and ends something shares an id.
 *
 * Each probe has a semaphore, which the kernel raises while somebody listens: a silent site is one load, a test and a branch
 * that is not taken, and no argument is computed. Each executable and library has its own semaphores; they are weak, so that
 * every object may bring them.
 *
 * Where systemtap's <sys/sdt.h> is missing at build time, or with `make USDT=0` (-DNO_USDT), sites are nothing at all.
 */
#ifndef IPCC_PROBES_H
#define IPCC_PROBES_H

#if !defined(NO_USDT) && defined(__has_include)
#if __has_include(<sys/sdt.h>)
#define PROBES_COMPILED_IN 1
#endif
#endif

#ifdef PROBES_COMPILED_IN
/* Registers and constants only: not every reader understands every addressing mode. */
#define STAP_SDT_ARG_CONSTRAINT nr
#define SDT_USE_VARIADIC
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#define PROBE_SEMAPHORE(name)                                                                                          \
	__attribute__((weak, visibility("hidden"),                                                                     \
		       section(".probes"))) volatile unsigned short ipc_cache_##name##_semaphore
#define PROBE(name, ...)                                                                                               \
	do {                                                                                                           \
		if (probe_is_wanted(&ipc_cache_##name##_semaphore))                                                    \
			STAP_PROBEV(ipc_cache, name, __VA_ARGS__);                                                     \
	} while (0)

static inline __attribute__((always_inline)) int probe_is_wanted(const volatile unsigned short *semaphore)
{
#ifdef __x86_64__
	/* What the compiler is told is unlikely may still be where it falls through to. */
	asm goto("cmpw $0, %0\n\tjne %l[wanted]" : : "m"(*semaphore) : "cc" : wanted);
	return 0;
wanted:
	return 1;
#else
	return __builtin_expect(*semaphore != 0, 0);
#endif
}
#else
static inline void probe_ignore(int first, ...)
{
	(void)first;
}
#define PROBE_SEMAPHORE(name) struct ipc_cache_##name##_unused
#define PROBE(name, ...)                                                                                               \
	do {                                                                                                           \
		if (0)                                                                                                 \
			probe_ignore(0, __VA_ARGS__);                                                                  \
	} while (0)
#endif

/* ---- the broker: `connection` is its number, `request` the id that the client gave; both name pairs --------------- */

PROBE_SEMAPHORE(connection__accepted);
#define PROBE_CONNECTION_ACCEPTED(connection) PROBE(connection__accepted, connection)

PROBE_SEMAPHORE(connection__authenticated);
#define PROBE_CONNECTION_AUTHENTICATED(connection, pid, uid) PROBE(connection__authenticated, connection, pid, uid)

/* Turned away, or ended by the broker; `reason` is what the peer is told. */
PROBE_SEMAPHORE(connection__refused);
#define PROBE_CONNECTION_REFUSED(connection, pid, uid, code, reason)                                                   \
	PROBE(connection__refused, connection, pid, uid, code, reason)

/* A pair with connection__accepted. */
PROBE_SEMAPHORE(connection__closed);
#define PROBE_CONNECTION_CLOSED(connection) PROBE(connection__closed, connection)

PROBE_SEMAPHORE(request__received);
#define PROBE_REQUEST_RECEIVED(connection, request, type) PROBE(request__received, connection, request, type)

PROBE_SEMAPHORE(request__replied);
#define PROBE_REQUEST_REPLIED(connection, request, type, code) PROBE(request__replied, connection, request, type, code)

/* It waits until the registry changes; `model` is the id that it waits for, or 0. */
PROBE_SEMAPHORE(request__parked);
#define PROBE_REQUEST_PARKED(connection, request, model, wait_ms)                                                      \
	PROBE(request__parked, connection, request, model, wait_ms)

PROBE_SEMAPHORE(key__matched);
#define PROBE_KEY_MATCHED(connection, request, model, generation, name)                                                \
	PROBE(key__matched, connection, request, model, generation, name)

PROBE_SEMAPHORE(key__mismatched);
#define PROBE_KEY_MISMATCHED(connection, request, field, expected, got)                                                \
	PROBE(key__mismatched, connection, request, field, expected, got)

PROBE_SEMAPHORE(lease__taken);
#define PROBE_LEASE_TAKEN(connection, model, pid, uid, name) PROBE(lease__taken, connection, model, pid, uid, name)

PROBE_SEMAPHORE(lease__ended);
#define PROBE_LEASE_ENDED(connection, model, pid, uid, name) PROBE(lease__ended, connection, model, pid, uid, name)

PROBE_SEMAPHORE(publish__begun);
#define PROBE_PUBLISH_BEGUN(connection, model, bytes, segments, name)                                                  \
	PROBE(publish__begun, connection, model, bytes, segments, name)

PROBE_SEMAPHORE(publish__committed);
#define PROBE_PUBLISH_COMMITTED(connection, model, bytes, generation, name)                                            \
	PROBE(publish__committed, connection, model, bytes, generation, name)

/* `mode` is enum ipcc_evict_mode; of a model that was loading too. */
PROBE_SEMAPHORE(model__evicted);
#define PROBE_MODEL_EVICTED(connection, model, mode, leases, name)                                                     \
	PROBE(model__evicted, connection, model, mode, leases, name)

/* ---- the client library: `client` and `model` are addresses, unique within the process ---------------------------- */

PROBE_SEMAPHORE(connect__started);
#define PROBE_CONNECT_STARTED(client) PROBE(connect__started, client)

PROBE_SEMAPHORE(connect__finished);
#define PROBE_CONNECT_FINISHED(client, code) PROBE(connect__finished, client, code)

/* `wanted` is what the caller calls the model, or NULL. */
PROBE_SEMAPHORE(attach__started);
#define PROBE_ATTACH_STARTED(client, wanted) PROBE(attach__started, client, wanted)

PROBE_SEMAPHORE(reply__received);
#define PROBE_REPLY_RECEIVED(client, request, type, code) PROBE(reply__received, client, request, type, code)

PROBE_SEMAPHORE(manifest__verified);
#define PROBE_MANIFEST_VERIFIED(client, bytes, tensors) PROBE(manifest__verified, client, bytes, tensors)

/* The caller's own files; the strings are NULL unless they differ and the caller asked why. */
PROBE_SEMAPHORE(sources__compared);
#define PROBE_SOURCES_COMPARED(client, code, field, expected, got)                                                     \
	PROBE(sources__compared, client, code, field, expected, got)

PROBE_SEMAPHORE(attach__finished);
#define PROBE_ATTACH_FINISHED(client, code, model, name) PROBE(attach__finished, client, code, model, name)

PROBE_SEMAPHORE(map__started);
#define PROBE_MAP_STARTED(model, client) PROBE(map__started, model, client)

PROBE_SEMAPHORE(segment__imported);
#define PROBE_SEGMENT_IMPORTED(fd, bytes) PROBE(segment__imported, fd, bytes)

PROBE_SEMAPHORE(segment__mapped);
#define PROBE_SEGMENT_MAPPED(address, bytes) PROBE(segment__mapped, address, bytes)

/* A GPU's only: a mapping of host memory has its access from the start. */
PROBE_SEMAPHORE(access__set);
#define PROBE_ACCESS_SET(address, bytes) PROBE(access__set, address, bytes)

PROBE_SEMAPHORE(map__finished);
#define PROBE_MAP_FINISHED(model, code, bytes, segments, tensors)                                                      \
	PROBE(map__finished, model, code, bytes, segments, tensors)

/* What an engine did with the model, in its own words; CLOCK_MONOTONIC. */
PROBE_SEMAPHORE(phase__finished);
#define PROBE_PHASE_FINISHED(model, phase, start_ns, end_ns) PROBE(phase__finished, model, phase, start_ns, end_ns)

/* ---- the loader: `id` names a pair while it lasts; `path` is enum fill_path: 0 direct, 1 buffered, 2 mapped -------- */

PROBE_SEMAPHORE(plan__made);
#define PROBE_PLAN_MADE(root, bytes, tensors, segments, reads) PROBE(plan__made, root, bytes, tensors, segments, reads)

/* A mapped read lasts until its bytes are hashed and written too: it happens as they are touched. */
PROBE_SEMAPHORE(read__submitted);
#define PROBE_READ_SUBMITTED(id, path, fd, offset, bytes) PROBE(read__submitted, id, path, fd, offset, bytes)

/* `result` is the bytes that came, or a negative errno. */
PROBE_SEMAPHORE(read__completed);
#define PROBE_READ_COMPLETED(id, path, result) PROBE(read__completed, id, path, result)

PROBE_SEMAPHORE(unit__hashed);
#define PROBE_UNIT_HASHED(file, offset, bytes) PROBE(unit__hashed, file, offset, bytes)

PROBE_SEMAPHORE(upload__submitted);
#define PROBE_UPLOAD_SUBMITTED(id, address, bytes) PROBE(upload__submitted, id, address, bytes)

PROBE_SEMAPHORE(upload__completed);
#define PROBE_UPLOAD_COMPLETED(id, result) PROBE(upload__completed, id, result)

/* Everything is in it, and it is sealed. */
PROBE_SEMAPHORE(segment__full);
#define PROBE_SEGMENT_FULL(segment, bytes) PROBE(segment__full, segment, bytes)

#endif
