/* Connecting, authenticating the broker, canceling, closing; see ipc_cache.h. */
#include "broker/client/client.h"

#include "bpf/probes.h"
#include "broker/link/rendezvous.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 10000

EXPORT const char *ipcc_version(void)
{
	return IPCC_VERSION;
}

EXPORT const char *ipcc_code_name(int code)
{
	static const char *const names[] = {
		[IPCC_OK] = "ok",
		[IPCC_FAILED] = "failed",
		[IPCC_USAGE] = "usage",
		[IPCC_NOT_FOUND] = "not-found",
		[IPCC_MISMATCH] = "mismatch",
		[IPCC_INVALID] = "invalid",
		[IPCC_REFUSED] = "refused",
		[IPCC_NO_BROKER] = "no-broker",
		[IPCC_BUSY] = "busy",
		[IPCC_TIMEOUT] = "timeout",
		[IPCC_CANCELED] = "canceled",
		[IPCC_NO_MEMORY] = "no-memory",
		[IPCC_EXISTS] = "exists",
		[IPCC_PROTOCOL] = "protocol",
		[IPCC_UNKNOWN] = "unknown",
	};
	return code >= 0 && (size_t)code < array_length(names) ? names[code] : "unknown-code";
}

EXPORT const char *ipcc_dtype_name(uint32_t dtype)
{
	return dtype_name(dtype);
}

EXPORT uint32_t ipcc_dtype_bits(uint32_t dtype)
{
	return dtype_bits(dtype);
}

/* The uids whose broker is trusted: the caller's, root's, and one more that the options or the environment name. */
static int trusted_uids(const struct ipcc_client_options *options, uid_t trusted[3], unsigned *count,
			struct ipcc_error *err)
{
	const char *text = secure_getenv("IPC_CACHE_TRUST_UID");
	char *end;
	trusted[0] = geteuid();
	trusted[1] = 0;
	trusted[2] = options->trust_uid;
	*count = options->trust_uid_set ? 3 : 2;
	if (options->trust_uid_set || text == NULL || *text == '\0')
		return IPCC_OK;
	unsigned long uid = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end != '\0' || uid >= UINT32_MAX)
		return fail(err, IPCC_USAGE, "IPC_CACHE_TRUST_UID=%s is no uid", text);
	trusted[2] = (uid_t)uid;
	*count = 3;
	return IPCC_OK;
}

static int open_socket(struct ipcc_client *client, const struct ipcc_client_options *options, struct ipcc_error *err)
{
	char dir[PATH_MAX];
	uid_t trusted[3];
	unsigned trusted_count;
	cleanup_fd int dir_fd = -1;
	rendezvous_client_dir(dir);
	const char *chosen = options->dir == NULL ? dir : options->dir;
	int rc = trusted_uids(options, trusted, &trusted_count, err);
	if (rc == IPCC_OK)
		rc = rendezvous_open(chosen, trusted, trusted_count, &dir_fd, err);
	if (rc != IPCC_OK)
		return rc;
	return rendezvous_connect(dir_fd, chosen, trusted, trusted_count, client->timeout_ms, &client->socket_fd, err);
}

static int greet(struct ipcc_client *client, struct ipcc_error *err)
{
	struct call call;
	struct hello_request hello = {.major = le16_make(PROTOCOL_MAJOR), .minor = le16_make(PROTOCOL_MINOR)};
	struct hello_reply reply;
	memcpy(hello.magic, PROTOCOL_MAGIC, sizeof(hello.magic));
	call_start(&call, MESSAGE_HELLO);
	message_append(&call.message, &hello, sizeof(hello));
	int rc = call_run(&call, client, NULL, 0, 0, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, &reply, sizeof(reply));
		rc = call_finished(&call, 0, err);
	}
	if (rc == IPCC_OK)
		memcpy(client->instance, reply.instance, sizeof(client->instance));
	call_end(&call);
	return rc;
}

EXPORT int ipcc_connect(struct ipcc_client **client, const struct ipcc_client_options *options, struct ipcc_error *err)
{
	static const struct ipcc_client_options defaults;
	if (options == NULL)
		options = &defaults;
	struct ipcc_client *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return fail_errno(err, ENOMEM, "cannot connect");
	PROBE_CONNECT_STARTED(made);
	made->socket_fd = -1;
	made->timeout_ms = options->timeout_ms == 0 ? DEFAULT_TIMEOUT_MS : options->timeout_ms;
	pthread_mutex_init(&made->lock, NULL);
	made->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = made->cancel_fd < 0 ? fail_errno(err, errno, "cannot create an eventfd") : IPCC_OK;
	if (rc == IPCC_OK)
		rc = open_socket(made, options, err);
	if (rc == IPCC_OK)
		rc = greet(made, err);
	PROBE_CONNECT_FINISHED(made, rc);
	if (rc != IPCC_OK) {
		ipcc_close(made);
		return rc;
	}
	*client = made;
	return IPCC_OK;
}

void client_hang_up(struct ipcc_client *client)
{
	client->broken = true;
	shutdown(client->socket_fd, SHUT_RDWR);
}

void client_leave(struct ipcc_client *client)
{
	struct pollfd broker = {.fd = client->socket_fd, .events = POLLRDHUP};
	client->broken = true;
	shutdown(client->socket_fd, SHUT_WR);
	while (poll(&broker, 1, client->timeout_ms) < 0 && errno == EINTR)
		;
	shutdown(client->socket_fd, SHUT_RDWR);
}

EXPORT void ipcc_close(struct ipcc_client *client)
{
	if (client == NULL)
		return;
	if (client->leased != NULL)
		client->leased->client = NULL;
	if (client->publishing != NULL)
		publish_orphan(client->publishing);
	fd_close(&client->socket_fd);
	fd_close(&client->cancel_fd);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

EXPORT void ipcc_cancel(struct ipcc_client *client)
{
	uint64_t one = 1;
	int before = errno;
	client->canceled = true;
	if (write(client->cancel_fd, &one, sizeof(one)) < 0)
		errno = before; /* only EAGAIN: it was canceled 2^64 times already */
}

EXPORT int ipcc_fd(const struct ipcc_client *client)
{
	return client->socket_fd;
}
