/*
 * Naming what a forbidden write hit, before the process dies of it; see ipc_cache.h.
 *
 * The handler runs in the middle of anything: it takes no lock, allocates nothing, formats by hand, and writes one line.
 * Invariants: a slot of `watched` holds a mapped model or NULL, and a model leaves its slot before it is unmapped; a fault
 * inside the handler goes to the previous handler at once.
 */
#include "broker/client/client.h"

#include "manifest/fail.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define WATCHED_MAX 256

static struct ipcc_model *_Atomic watched[WATCHED_MAX];
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;
static bool installed;
/* In memory that is there from the start: a handler must not be the first to ask for it. */
static __thread volatile sig_atomic_t inside __attribute__((tls_model("initial-exec")));

/* A line under construction; what does not fit is cut. */
struct line {
	char text[512];
	size_t length;
};

static void add_text(struct line *line, const char *text)
{
	for (; *text != '\0' && line->length < sizeof(line->text); text++)
		line->text[line->length++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
}

static void add_number(struct line *line, uint64_t number, unsigned base)
{
	char digits[24];
	size_t at = sizeof(digits);
	digits[--at] = '\0';
	do
		digits[--at] = "0123456789abcdef"[number % base];
	while ((number /= base) > 0);
	add_text(line, digits + at);
}

/* The tensor that has that byte, the owner of it before its aliases. */
static bool find_tensor(const struct ipcc_model *model, uint32_t segment, uint64_t offset, struct ipcc_tensor *tensor)
{
	for (uint32_t i = 0; i < model->facts.tensors; i++)
		if (manifest_tensor(&model->manifest, i, tensor, NULL) == IPCC_OK && tensor->segment == segment &&
		    offset >= tensor->offset && offset - tensor->offset < tensor->bytes)
			return true;
	return false;
}

static void describe(struct line *line, const struct ipcc_model *model, uint32_t segment, uint64_t offset)
{
	struct ipcc_tensor tensor;
	add_text(line, "ipc-cache: a write to shared, read-only weights: ");
	if (find_tensor(model, segment, offset, &tensor)) {
		add_text(line, "byte ");
		add_number(line, offset - tensor.offset, 10);
		add_text(line, " of tensor ");
		add_text(line, tensor.name);
		add_text(line, ", ");
	}
	add_text(line, "offset ");
	add_number(line, offset, 10);
	add_text(line, " of segment ");
	add_number(line, segment, 10);
	add_text(line, " of model ");
	add_text(line, model->facts.name);
	add_text(line, "; copy what is written, or attach privately");
}

static bool describe_address(struct line *line, uintptr_t address)
{
	for (unsigned slot = 0; slot < WATCHED_MAX; slot++) {
		const struct ipcc_model *model = atomic_load(&watched[slot]);
		for (uint32_t i = 0; model != NULL && i < model->facts.segments; i++) {
			uintptr_t begin = (uintptr_t)model->mappings[i].address;
			if (begin != 0 && address >= begin && address - begin < model->mappings[i].bytes) {
				describe(line, model, i, address - begin);
				return true;
			}
		}
	}
	return false;
}

/* As if we had never been there. Returning runs the faulting instruction again, under the default action. */
static void pass_on(int number, siginfo_t *info, void *context)
{
	if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != NULL)
		previous.sa_sigaction(number, info, context);
	else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
		previous.sa_handler(number);
	else
		signal(number, SIG_DFL);
}

static void handle(int number, siginfo_t *info, void *context)
{
	int saved_errno = errno;
	struct line line = {.length = 0};
	if (!inside) {
		inside = 1;
		/* si_code: only the kernel knows an address. */
		if (info->si_code > 0 && describe_address(&line, (uintptr_t)info->si_addr)) {
			line.text[line.length < sizeof(line.text) ? line.length++ : sizeof(line.text) - 1] = '\n';
			ssize_t written = write(STDERR_FILENO, line.text, line.length);
			(void)written;
		}
		inside = 0;
	}
	errno = saved_errno;
	pass_on(number, info, context);
}

EXPORT int ipcc_faults(bool on, struct ipcc_error *err)
{
	struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
	int rc = IPCC_OK;
	action.sa_sigaction = handle;
	sigemptyset(&action.sa_mask);
	pthread_mutex_lock(&install_lock);
	if (on && !installed) {
		if (sigaction(SIGSEGV, &action, &previous) != 0)
			rc = fail_errno(err, errno, "cannot handle SIGSEGV");
		installed = rc == IPCC_OK;
	} else if (!on && installed) {
		/* Somebody else's handler, installed after ours, may chain to ours: then it stays. */
		if (sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == handle) {
			sigaction(SIGSEGV, &previous, NULL);
			installed = false;
		} else {
			rc = fail(err, IPCC_BUSY, "another handler of SIGSEGV was installed after this one");
		}
	}
	pthread_mutex_unlock(&install_lock);
	return rc;
}

EXPORT int ipcc_fault_watch(struct ipcc_model *model, struct ipcc_error *err)
{
	if (!model->mapped)
		return fail(err, IPCC_USAGE, "map the model before it is watched");
	if (model->watched)
		return IPCC_OK;
	for (unsigned slot = 0; slot < WATCHED_MAX; slot++) {
		struct ipcc_model *nobody = NULL;
		if (atomic_compare_exchange_strong(&watched[slot], &nobody, model)) {
			model->watched = true;
			return IPCC_OK;
		}
	}
	return fail(err, IPCC_REFUSED, "%d models are watched already", WATCHED_MAX);
}

void fault_forget(struct ipcc_model *model)
{
	for (unsigned slot = 0; model->watched && slot < WATCHED_MAX; slot++) {
		struct ipcc_model *self = model;
		atomic_compare_exchange_strong(&watched[slot], &self, NULL);
	}
	model->watched = false;
}
