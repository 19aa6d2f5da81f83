/* The list of system calls, through libseccomp; see sandbox.h. */
#include "broker/sandbox.h"

#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/prctl.h>

#ifdef NO_SANDBOX

int sandbox_enter(struct ipcc_error *err)
{
	(void)err;
	return IPCC_OK;
}

#else

static const int allowed[] = {
	/* the loop and its connections */
	SCMP_SYS(poll),
	SCMP_SYS(ppoll),
	SCMP_SYS(epoll_wait),
	SCMP_SYS(epoll_pwait),
	SCMP_SYS(epoll_ctl),
	SCMP_SYS(accept4),
	SCMP_SYS(recvmsg),
	SCMP_SYS(sendmsg),
	SCMP_SYS(shutdown),
	SCMP_SYS(getsockopt),
	SCMP_SYS(setsockopt),
	SCMP_SYS(ioctl),
	SCMP_SYS(read),
	SCMP_SYS(write),
	SCMP_SYS(writev),
	SCMP_SYS(close),
	/* memfds */
	SCMP_SYS(memfd_create),
	SCMP_SYS(fcntl),
	SCMP_SYS(fstat),
	SCMP_SYS(newfstatat),
	SCMP_SYS(fstatfs),
	SCMP_SYS(ftruncate),
	SCMP_SYS(fallocate),
	SCMP_SYS(pread64),
	SCMP_SYS(pwrite64),
	/* what a GPU's segment is */
	SCMP_SYS(statx),
	/* memory, threads, time, and the process itself */
	SCMP_SYS(mmap),
	SCMP_SYS(munmap),
	SCMP_SYS(mremap),
	SCMP_SYS(mprotect),
	SCMP_SYS(madvise),
	SCMP_SYS(brk),
	SCMP_SYS(futex),
	SCMP_SYS(set_robust_list),
	SCMP_SYS(rseq),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(restart_syscall),
	SCMP_SYS(sched_yield),
	SCMP_SYS(sched_getaffinity),
	SCMP_SYS(clock_gettime),
	SCMP_SYS(clock_nanosleep),
	SCMP_SYS(getrandom),
	SCMP_SYS(getpid),
	SCMP_SYS(gettid),
	SCMP_SYS(tgkill),
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	/* the end: the socket is removed */
	SCMP_SYS(unlinkat),
};

static int add_rules(scmp_filter_ctx filter)
{
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < array_length(allowed); i++)
		rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
	/* Threads, no processes. The flags of clone3 lie in memory, where no filter sees them: the C library then takes
	 * clone. */
	if (rc == 0)
		rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
	if (rc == 0)
		rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
				      SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
	return rc;
}

int sandbox_enter(struct ipcc_error *err)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (filter == NULL)
		return fail_errno(err, ENOMEM, "cannot prepare the sandbox");
	int rc = add_rules(filter);
	/* Processes of the same user cannot reach in through /proc/PID/fd or ptrace either. */
	if (rc == 0 && prctl(PR_SET_DUMPABLE, 0) != 0)
		rc = -errno;
	if (rc == 0)
		rc = seccomp_load(filter);
	seccomp_release(filter);
	return rc == 0 ? IPCC_OK : fail_errno(err, -rc, "cannot enter the sandbox");
}

#endif
