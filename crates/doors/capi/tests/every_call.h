/* Every function of devmem_tcp.h that takes a stack or a file, as a table: for tests that call all of them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include <devmem_tcp.h>

static int wrong;

#define EXPECT(error, call)                                                                                       \
	do {                                                                                                      \
		errno = 0;                                                                                        \
		long long answer = (long long)(call);                                                             \
		if (answer != -1 || errno != (error)) {                                                           \
			printf("line %d: %s = %lld, errno %d\n", __LINE__, #call, answer, errno);                 \
			wrong++;                                                                                  \
		}                                                                                                 \
	} while (0)

#define WORKS(call)                                                                                               \
	do {                                                                                                      \
		if ((call) < 0) {                                                                                 \
			printf("line %d: %s: %s\n", __LINE__, #call, strerror(errno));                            \
			wrong++;                                                                                  \
		}                                                                                                 \
	} while (0)

#define IS(expected, call)                                                                                        \
	do {                                                                                                      \
		long long answer = (long long)(call);                                                             \
		if (answer != (expected)) {                                                                       \
			printf("line %d: %s = %lld, errno %d\n", __LINE__, #call, answer, errno);                 \
			wrong++;                                                                                  \
		}                                                                                                 \
	} while (0)

static struct sockaddr_in ours;
static struct epoll_event event = { .events = EPOLLIN };
static char some[16];
static socklen_t some_len;
static int number = 1;
static struct iovec vector = { .iov_base = some, .iov_len = 1 };

static struct msghdr *message(void)
{
	static struct msghdr msg;

	memset(&msg, 0, sizeof(msg));
	msg.msg_iov = &vector;
	msg.msg_iovlen = 1;
	return &msg;
}

static socklen_t *room(void)
{
	some_len = sizeof(some);
	return &some_len;
}

/* Name, call with a stack `s` and a file `fd`, and the errno of the call on an epoll (0 if it succeeds). */
#define FILE_CALLS(X)                                                                                             \
	X(bind, dmt_bind(s, fd, (struct sockaddr *)&ours, sizeof(ours)), ENOTSOCK)                                \
	X(listen, dmt_listen(s, fd, 1), ENOTSOCK)                                                                 \
	X(accept, dmt_accept(s, fd, NULL, NULL), ENOTSOCK)                                                        \
	X(accept4, dmt_accept4(s, fd, (struct sockaddr *)some, room(), SOCK_NONBLOCK), ENOTSOCK)                  \
	X(connect, dmt_connect(s, fd, (struct sockaddr *)&ours, sizeof(ours)), ENOTSOCK)                          \
	X(getsockname, dmt_getsockname(s, fd, (struct sockaddr *)some, room()), ENOTSOCK)                         \
	X(getpeername, dmt_getpeername(s, fd, (struct sockaddr *)some, room()), ENOTSOCK)                         \
	X(read, dmt_read(s, fd, some, 1), EINVAL)                                                                 \
	X(readv, dmt_readv(s, fd, &vector, 1), EINVAL)                                                            \
	X(recv, dmt_recv(s, fd, some, 1, 0), ENOTSOCK)                                                            \
	X(recvfrom, dmt_recvfrom(s, fd, some, 1, 0, NULL, NULL), ENOTSOCK)                                        \
	X(recvmsg, dmt_recvmsg(s, fd, message(), 0), ENOTSOCK)                                                    \
	X(write, dmt_write(s, fd, some, 1), EINVAL)                                                               \
	X(writev, dmt_writev(s, fd, &vector, 1), EINVAL)                                                          \
	X(send, dmt_send(s, fd, some, 1, 0), ENOTSOCK)                                                            \
	X(sendto, dmt_sendto(s, fd, some, 1, 0, NULL, 0), ENOTSOCK)                                               \
	X(sendmsg, dmt_sendmsg(s, fd, message(), 0), ENOTSOCK)                                                    \
	X(shutdown, dmt_shutdown(s, fd, SHUT_WR), ENOTSOCK)                                                       \
	X(getsockopt, dmt_getsockopt(s, fd, SOL_SOCKET, SO_TYPE, some, room()), ENOTSOCK)                         \
	X(setsockopt, dmt_setsockopt(s, fd, SOL_SOCKET, SO_REUSEADDR, &number, sizeof(number)), ENOTSOCK)         \
	X(dontneed, dmt_setsockopt(s, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, some, 8), ENOTSOCK)                     \
	X(fcntl, dmt_fcntl(s, fd, F_GETFL, 0), 0)                                                                 \
	X(ioctl, dmt_ioctl(s, fd, SIOCOUTQ, &number), ENOTTY)                                                     \
	X(epoll_add, dmt_epoll_ctl(s, some_epoll, EPOLL_CTL_ADD, fd, &event), 0)                                  \
	X(epoll_mod, dmt_epoll_ctl(s, some_epoll, EPOLL_CTL_MOD, fd, &event), 0)                                  \
	X(epoll_del, dmt_epoll_ctl(s, some_epoll, EPOLL_CTL_DEL, fd, NULL), 0)                                    \
	X(epoll_ctl, dmt_epoll_ctl(s, fd, EPOLL_CTL_DEL, some_epoll, NULL), ENOENT)                               \
	X(epoll_fd, dmt_epoll_fd(s, fd), 0)                                                                       \
	X(epoll_wait, dmt_epoll_wait(s, fd, &event, 1, 0), 0)                                                     \
	X(close, dmt_close(s, fd), 0)

/* Calls with a stack and without a file. */
#define STACK_CALLS(X)                                                                                            \
	X(stack_close, dmt_stack_close(s))                                                                        \
	X(bind_rx, dmt_bind_rx(s, some_memory, &some_id))                                                         \
	X(bind_tx, dmt_bind_tx(s, some_memory, &some_id))                                                         \
	X(unbind, dmt_unbind(s, 1))                                                                               \
	X(get_stats, dmt_get_stats(s, (struct dmt_stats *)stats, sizeof(struct dmt_stats)))                       \
	X(socket, dmt_socket(s, AF_INET, SOCK_STREAM, 0))                                                         \
	X(poll, dmt_poll(s, NULL, 0, 0))                                                                          \
	X(epoll_create1, dmt_epoll_create1(s, 0))

static int some_epoll;
static dmt_memory *some_memory;
static uint32_t some_id;
static uint64_t stats[32];

#define FILE_FUNCTION(name, call, on_epoll)                                                                       \
	static long long file_##name(dmt_stack *s, int fd)                                                        \
	{                                                                                                         \
		return (long long)(call);                                                                         \
	}
#define STACK_FUNCTION(name, call)                                                                                \
	static long long stack_##name(dmt_stack *s, int fd)                                                       \
	{                                                                                                         \
		(void)fd;                                                                                         \
		return (long long)(call);                                                                         \
	}
FILE_CALLS(FILE_FUNCTION)
STACK_CALLS(STACK_FUNCTION)

struct entry {
	const char *name;
	long long (*call)(dmt_stack *, int);
	int on_epoll;
};

#define FILE_ENTRY(name, call, on_epoll) { #name, file_##name, on_epoll },
#define STACK_ENTRY(name, call) { #name, stack_##name, 0 },
static const struct entry file_calls[] = { FILE_CALLS(FILE_ENTRY) };
static const struct entry stack_calls[] = { STACK_CALLS(STACK_ENTRY) };

static int checked;

static void expect(const struct entry *entry, dmt_stack *stack, int fd, int error)
{
	long long answer;

	errno = 0;
	answer = entry->call(stack, fd);
	checked++;
	if (answer != -1 || errno != error) {
		printf("%s of stack %p, file %d: %lld, errno %d instead of %d\n", entry->name, (void *)stack, fd,
		       answer, errno, error);
		wrong++;
	}
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

