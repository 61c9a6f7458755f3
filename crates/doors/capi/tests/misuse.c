/* Bad input through the C ABI: every wrong call returns an errno, and none crashes. Prints failed checks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

/* --- Every function that takes a file, with every file that it must refuse --- */

#include "every_call.h"

/* Invalid handles, and invalid files: never opened, of the process, closed, of another stack. */
static void every_call_with_every_bad_handle(void)
{
	dmt_stack *stack = dmt_open("mem:table", "address=10.77.0.1/24");
	dmt_stack *other = dmt_open("mem:table", "address=10.77.0.2/24");
	dmt_stack *closed = dmt_open("mem:closed", "address=10.77.0.1/24");
	int theirs = dmt_socket(other, AF_INET, SOCK_STREAM, 0);
	int fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	int gone = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	int epfd;

	some_memory = dmt_memory_new(1 << 20);
	some_epoll = dmt_epoll_create1(stack, 0);
	epfd = dmt_epoll_create1(stack, 0);
	if (!stack || !other || !closed || !some_memory || theirs < 0 || fd < 0 || epfd < 0)
		wrong++, puts("the stacks could not be opened");
	WORKS(dmt_close(stack, gone));
	WORKS(dmt_stack_close(closed));
	{
		dmt_stack *stacks[] = { NULL, closed, (dmt_stack *)12345, (dmt_stack *)some_memory,
					(dmt_stack *)(uintptr_t)-1 };
		int files[] = { gone, theirs, -1, 0, 1, 3, 1 << 24, fd + 100, epfd + 65536, 0x7fffffff,
				-0x7fffffff - 1 };

		/* Not another kind of handle: stacks and memories are numbered separately, so its number may name a stack. */
		stacks[3] = (dmt_stack *)(uintptr_t)99999;
		for (size_t s = 0; s < COUNT(stacks); s++) {
			for (size_t i = 0; i < COUNT(stack_calls); i++)
				expect(&stack_calls[i], stacks[s], fd, EBADF);
			for (size_t i = 0; i < COUNT(file_calls); i++)
				expect(&file_calls[i], stacks[s], fd, EBADF);
		}
		for (size_t f = 0; f < COUNT(files); f++) {
			if (files[f] == fd || files[f] == some_epoll || files[f] == epfd)
				continue;
			for (size_t i = 0; i < COUNT(file_calls); i++)
				expect(&file_calls[i], stack, files[f], EBADF);
		}
	}
	for (size_t i = 0; i < COUNT(file_calls); i++) {
		if (file_calls[i].on_epoll)
			expect(&file_calls[i], stack, epfd, file_calls[i].on_epoll);
	}
	/* No failed call opened or closed a file, and the stack still works. */
	WORKS(dmt_close(other, theirs));
	WORKS(dmt_close(stack, epfd));
	WORKS(dmt_close(stack, some_epoll));
	WORKS(dmt_close(stack, fd));
	if (dmt_socket(stack, AF_INET, SOCK_STREAM, 0) > fd + 3)
		wrong++, puts("a failed call opened or closed a file");
	WORKS(dmt_stack_close(stack));
	WORKS(dmt_stack_close(other));
	WORKS(dmt_memory_free(some_memory));
}

/* --- Null pointers, wrong lengths and wrong flags, one argument at a time --- */

static void every_bad_argument(dmt_stack *stack, int fd, int listener)
{
	static uint64_t many[129];
	dmt_memory *memory = dmt_memory_new(1 << 20);
	dmt_stack *other = dmt_open("mem:other", "address=10.77.0.9/24");
	uint32_t other_id;
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
	struct epoll_event events[2];
	int epfd = dmt_epoll_create1(stack, 0);
	struct msghdr *msg = message();

	/* Invalid lengths, and null pointers. */
	if (dmt_memory_new(0) || errno != ENOMEM)
		wrong++, printf("a memory of 0 bytes: errno %d\n", errno);
	if (dmt_memory_new((size_t)-1) || errno != ENOMEM)
		wrong++, printf("a memory of the maximum size: errno %d\n", errno);
	EXPECT(EFAULT, dmt_memory_read(memory, (size_t)-1, some, 1));
	EXPECT(EFAULT, dmt_memory_write(memory, (1 << 20) - 1, some, 2));
	EXPECT(EINVAL, dmt_memory_read(memory, 0, some, (size_t)-1));
	EXPECT(EINVAL, dmt_memory_write(memory, 0, some, (size_t)-1));
	WORKS(dmt_memory_read(memory, 1 << 20, NULL, 0));
	WORKS(dmt_memory_write(memory, 0, NULL, 0));
	/* Without a pointer for its id, no binding is made: the memory can be bound afterwards. */
	EXPECT(EFAULT, dmt_bind_rx(stack, memory, NULL));
	EXPECT(EFAULT, dmt_bind_tx(stack, memory, NULL));
	WORKS(dmt_bind_rx(stack, memory, &some_id));
	EXPECT(EEXIST, dmt_bind_rx(stack, memory, &some_id));
	/* A memory has at most one binding, over all stacks. */
	EXPECT(EBUSY, dmt_bind_rx(other, memory, &other_id));
	WORKS(dmt_unbind(stack, some_id));
	WORKS(dmt_bind_rx(other, memory, &other_id));
	EXPECT(EBUSY, dmt_bind_rx(stack, memory, &some_id));
	WORKS(dmt_unbind(other, other_id));
	WORKS(dmt_stack_close(other));
	EXPECT(EINVAL, dmt_unbind(stack, some_id));
	WORKS(dmt_bind_tx(stack, memory, &some_id));
	WORKS(dmt_unbind(stack, some_id));
	EXPECT(EINVAL, dmt_unbind(stack, 0));
	EXPECT(EINVAL, dmt_unbind(stack, (uint32_t)-1));
	EXPECT(EFAULT, dmt_get_stats(stack, NULL, 8));
	WORKS(dmt_get_stats(stack, NULL, 0));
	memset(stats, 0xee, sizeof(stats));
	WORKS(dmt_get_stats(stack, (struct dmt_stats *)stats, 12));
	if (((unsigned char *)stats)[12] != 0xee)
		wrong++, puts("counters were written past SIZE bytes");

	EXPECT(EAFNOSUPPORT, dmt_socket(stack, AF_UNIX, SOCK_STREAM, 0));
	EXPECT(EAFNOSUPPORT, dmt_socket(stack, -1, SOCK_STREAM, 0));
	EXPECT(EOPNOTSUPP, dmt_socket(stack, AF_INET, SOCK_DGRAM, 0));
	EXPECT(EPROTONOSUPPORT, dmt_socket(stack, AF_INET, SOCK_STREAM, 17));
	EXPECT(EINVAL, dmt_socket(stack, AF_INET, SOCK_STREAM | 0x100, 0));

	EXPECT(EFAULT, dmt_connect(stack, fd, NULL, 16));
	EXPECT(EINVAL, dmt_connect(stack, fd, NULL, 0));
	EXPECT(EINVAL, dmt_bind(stack, fd, (struct sockaddr *)&ours, 1));
	EXPECT(EAFNOSUPPORT, dmt_bind(stack, fd, (struct sockaddr *)&v6, sizeof(v6)));
	EXPECT(EINVAL, dmt_accept4(stack, listener, NULL, NULL, 0x1));
	EXPECT(EINVAL, dmt_shutdown(stack, fd, 3));
	EXPECT(EINVAL, dmt_shutdown(stack, fd, -1));
	EXPECT(EFAULT, dmt_getpeername(stack, fd, (struct sockaddr *)some, NULL));
	EXPECT(EFAULT, dmt_getpeername(stack, fd, NULL, room()));

	EXPECT(EFAULT, dmt_read(stack, fd, NULL, 1));
	EXPECT(EINVAL, dmt_read(stack, fd, some, (size_t)-1));
	EXPECT(EFAULT, dmt_write(stack, fd, NULL, 1));
	EXPECT(EINVAL, dmt_write(stack, fd, some, (size_t)-1));
	EXPECT(EINVAL, dmt_readv(stack, fd, &vector, 1025));
	EXPECT(EFAULT, dmt_readv(stack, fd, NULL, 1));
	EXPECT(EINVAL, dmt_writev(stack, fd, &vector, -1));
	EXPECT(EFAULT, dmt_recvfrom(stack, fd, NULL, 1, 0, NULL, NULL));
	EXPECT(EFAULT, dmt_sendto(stack, fd, NULL, 1, 0, NULL, 0));
	EXPECT(EINVAL, dmt_recv(stack, fd, some, 1, MSG_OOB));
	EXPECT(EOPNOTSUPP, dmt_send(stack, fd, some, 1, MSG_OOB));
	EXPECT(EAGAIN, dmt_recv(stack, fd, some, 1, MSG_DONTWAIT));
	/* MSG_TRUNC discards the bytes, so the buffer may be NULL. */
	EXPECT(EAGAIN, dmt_recv(stack, fd, NULL, 1, MSG_DONTWAIT | MSG_TRUNC));
	EXPECT(EAGAIN, dmt_recv(stack, fd, some, 1, MSG_ERRQUEUE));
	msg->msg_iov = NULL;
	EXPECT(EFAULT, dmt_recvmsg(stack, fd, msg, MSG_DONTWAIT));
	EXPECT(EFAULT, dmt_sendmsg(stack, fd, msg, MSG_DONTWAIT));
	msg = message();
	msg->msg_iovlen = (size_t)-1;
	EXPECT(EMSGSIZE, dmt_recvmsg(stack, fd, msg, MSG_DONTWAIT));
	EXPECT(EMSGSIZE, dmt_sendmsg(stack, fd, msg, MSG_DONTWAIT));
	msg = message();
	msg->msg_control = some;
	msg->msg_controllen = (size_t)-1;
	EXPECT(EINVAL, dmt_recvmsg(stack, fd, msg, MSG_DONTWAIT));
	/* Longer than an int (linux net/socket.c ____sys_sendmsg). */
	EXPECT(ENOBUFS, dmt_sendmsg(stack, fd, msg, MSG_DONTWAIT));
	/* A NULL control buffer is none, whatever its length. */
	msg = message();
	msg->msg_controllen = 100;
	EXPECT(EAGAIN, dmt_recvmsg(stack, fd, msg, MSG_DONTWAIT));

	EXPECT(EINVAL, dmt_setsockopt(stack, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, some, 7));
	EXPECT(EINVAL, dmt_setsockopt(stack, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, many, sizeof(many)));
	EXPECT(EFAULT, dmt_setsockopt(stack, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, NULL, 8));
	EXPECT(ENOPROTOOPT, dmt_setsockopt(stack, fd, -1, -1, &number, sizeof(number)));
	EXPECT(ENOPROTOOPT, dmt_getsockopt(stack, fd, SOL_SOCKET, -1, some, room()));
	EXPECT(EFAULT, dmt_getsockopt(stack, fd, SOL_SOCKET, SO_TYPE, NULL, room()));
	some_len = (socklen_t)-1;
	EXPECT(EINVAL, dmt_getsockopt(stack, fd, SOL_SOCKET, SO_TYPE, some, &some_len));
	some_len = 2;
	memset(some, 0x55, sizeof(some));
	WORKS(dmt_getsockopt(stack, fd, SOL_SOCKET, SO_TYPE, some, &some_len));
	if (some_len != 2 || some[2] != 0x55)
		wrong++, puts("an option was written past its buffer");
	EXPECT(EINVAL, dmt_fcntl(stack, fd, F_DUPFD, 0));
	EXPECT(ENOTTY, dmt_ioctl(stack, fd, 0xdead, &number));
	EXPECT(EFAULT, dmt_ioctl(stack, fd, FIONBIO, NULL));

	/* An edge is not lost by a call that had no room for it. */
	event.events = EPOLLOUT | EPOLLET;
	WORKS(dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, fd, &event));
	EXPECT(EEXIST, dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, fd, &event));
	EXPECT(EINVAL, dmt_epoll_ctl(stack, epfd, 4, fd, &event));
	EXPECT(EFAULT, dmt_epoll_ctl(stack, epfd, EPOLL_CTL_MOD, fd, NULL));
	EXPECT(EFAULT, dmt_epoll_wait(stack, epfd, NULL, 1, 0));
	EXPECT(EINVAL, dmt_epoll_wait(stack, epfd, events, -1, 0));
	if (dmt_epoll_wait(stack, epfd, events, 2, 0) != 1)
		wrong++, puts("an edge was lost");
	WORKS(dmt_close(stack, epfd));
	WORKS(dmt_memory_free(memory));
}

/* --- Two threads on one socket --- */

struct pair {
	dmt_stack *stack;
	int fd;
};

/* Receives until the file or the stack is closed. */
static void *reader(void *argument)
{
	struct pair *pair = argument;
	char byte;

	while (dmt_recv(pair->stack, pair->fd, &byte, 1, 0) == 1)
		;
	return (void *)(intptr_t)errno;
}

int main(void)
{
	struct msghdr msg = { 0 };
	struct iovec iov = { .iov_base = NULL, .iov_len = 10 };
	struct pollfd none = { .fd = 3, .events = POLLIN };
	dmt_stack *unknown = (dmt_stack *)12345;
	char bytes[16] = "";
	socklen_t len = sizeof(bytes);
	uint32_t id;

	ours.sin_family = AF_INET;
	ours.sin_port = htons(80);
	inet_pton(AF_INET, "10.77.0.1", &ours.sin_addr);
	every_call_with_every_bad_handle();
	if (dmt_open(NULL, NULL) || errno != EFAULT)
		wrong++, puts("open without a link");
	if (dmt_open("mem:misuse", "mtu=none") || errno != EINVAL)
		wrong++, puts("open with bad settings");
	if (dmt_error(bytes, sizeof(bytes)) < 20 || strcmp(bytes, "dmt_open: EINVA"))
		wrong++, printf("the truncated reason is %s\n", bytes);
	EXPECT(EFAULT, dmt_error(NULL, 5));
	EXPECT(EINVAL, dmt_error(bytes, (size_t)-1));

	dmt_stack *stack = dmt_open("mem:misuse", "address=10.77.0.1/24");
	dmt_memory *memory = dmt_memory_new(1 << 20);
	int fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (!stack || !memory || fd < 0)
		return puts("the stacks could not be opened"), 1;

	/* Handles. */
	EXPECT(EBADF, dmt_socket(NULL, AF_INET, SOCK_STREAM, 0));
	EXPECT(EBADF, dmt_socket(unknown, AF_INET, SOCK_STREAM, 0));
	EXPECT(EBADF, dmt_stack_close(unknown));
	EXPECT(EBADF, dmt_memory_free((dmt_memory *)unknown));
	EXPECT(EBADF, dmt_bind_rx(stack, NULL, &id));
	EXPECT(EFAULT, dmt_memory_read(memory, 1 << 20, bytes, 1));
	EXPECT(EFAULT, dmt_memory_write(memory, (size_t)-1, bytes, 2));
	EXPECT(EFAULT, dmt_memory_read(memory, 0, NULL, 1));
	EXPECT(EINVAL, dmt_unbind(stack, 77));

	/* Files. */
	EXPECT(EBADF, dmt_read(stack, 0, bytes, 1));
	EXPECT(EBADF, dmt_close(stack, -5));
	EXPECT(EBADF, dmt_listen(stack, fd + 1, 1));
	EXPECT(EINVAL, dmt_accept(stack, fd, NULL, NULL));
	EXPECT(ENOTCONN, dmt_recv(stack, fd, bytes, 1, 0));
	EXPECT(EPIPE, dmt_send(stack, fd, bytes, 1, 0));

	/* Addresses. */
	EXPECT(EFAULT, dmt_bind(stack, fd, NULL, 16));
	EXPECT(EINVAL, dmt_bind(stack, fd, (struct sockaddr *)&ours, 3));
	EXPECT(EINVAL, dmt_connect(stack, fd, (struct sockaddr *)&ours, 15));
	EXPECT(EFAULT, dmt_getsockname(stack, fd, NULL, &len));
	EXPECT(EFAULT, dmt_getsockname(stack, fd, (struct sockaddr *)bytes, NULL));
	len = 4;
	memset(bytes, 0, sizeof(bytes));
	WORKS(dmt_getsockname(stack, fd, (struct sockaddr *)bytes, &len));
	if (len != 16 || bytes[4])
		wrong++, puts("an address was written past a short buffer, or its full length was not returned");
	len = (socklen_t)-1;
	EXPECT(EINVAL, dmt_getsockname(stack, fd, (struct sockaddr *)bytes, &len));

	/* Options. */
	EXPECT(EFAULT, dmt_setsockopt(stack, fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
	EXPECT(EINVAL, dmt_setsockopt(stack, fd, IPPROTO_TCP, TCP_NODELAY, &number, 3));
	EXPECT(EINVAL, dmt_setsockopt(stack, fd, IPPROTO_TCP, TCP_NODELAY, &number, (socklen_t)-1));
	EXPECT(ENOPROTOOPT, dmt_setsockopt(stack, fd, IPPROTO_TCP, 9999, &number, 4));
	EXPECT(EFAULT, dmt_getsockopt(stack, fd, SOL_SOCKET, SO_ERROR, &number, NULL));
	EXPECT(EINVAL, dmt_setsockopt(stack, fd, SOL_SOCKET, SO_LINGER, &number, 4));
	EXPECT(EFAULT, dmt_ioctl(stack, fd, 0x541b, NULL));
	EXPECT(EINVAL, dmt_fcntl(stack, fd, 4711, 0));

	/* Two threads on one socket, which is connected to a socket of the same stack. */
	int listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	WORKS(dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(stack, listener, 1));
	WORKS(dmt_connect(stack, fd, (struct sockaddr *)&ours, sizeof(ours)));
	len = sizeof(bytes);
	int server = dmt_accept(stack, listener, (struct sockaddr *)bytes, &len);
	WORKS(server);
	EXPECT(EISCONN, dmt_connect(stack, fd, (struct sockaddr *)&ours, sizeof(ours)));
	every_bad_argument(stack, fd, listener);
	/* Vectors and messages. */
	EXPECT(EFAULT, dmt_recv(stack, server, NULL, 1, MSG_DONTWAIT));
	EXPECT(EFAULT, dmt_send(stack, fd, NULL, 1, 0));
	EXPECT(EINVAL, dmt_send(stack, fd, bytes, (size_t)-1, 0));
	EXPECT(EFAULT, dmt_recvmsg(stack, server, NULL, 0));
	EXPECT(EFAULT, dmt_sendmsg(stack, fd, NULL, 0));
	EXPECT(EINVAL, dmt_readv(stack, server, &iov, -1));
	EXPECT(EINVAL, dmt_writev(stack, fd, &iov, 1025));
	EXPECT(EFAULT, dmt_writev(stack, fd, NULL, 2));
	EXPECT(EFAULT, dmt_writev(stack, fd, &iov, 1));
	msg.msg_iovlen = 1025;
	EXPECT(EMSGSIZE, dmt_sendmsg(stack, fd, &msg, 0));
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = bytes;
	msg.msg_controllen = sizeof(bytes);
	memset(bytes, 1, sizeof(bytes));
	EXPECT(EINVAL, (iov.iov_base = &number, iov.iov_len = 4, dmt_sendmsg(stack, fd, &msg, 0)));
	EXPECT(EFAULT, dmt_poll(stack, NULL, 1, 0));
	EXPECT(EINVAL, dmt_poll(stack, &none, (nfds_t)-1, 0));
	if (dmt_poll(stack, &none, 1, 0) != 1 || none.revents != POLLNVAL)
		wrong++, puts("poll of a file of the process");
	int epfd = dmt_epoll_create1(stack, 0);
	WORKS(epfd);
	EXPECT(EINVAL, dmt_epoll_create1(stack, 5));
	EXPECT(EFAULT, dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, fd, NULL));
	EXPECT(EINVAL, dmt_epoll_ctl(stack, fd, EPOLL_CTL_ADD, fd, &event));
	EXPECT(EBADF, dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, 3, &event));
	EXPECT(EINVAL, dmt_epoll_wait(stack, epfd, &event, 0, 0));
	EXPECT(ENOTSOCK, dmt_send(stack, epfd, "x", 1, 0));

	pthread_t threads[2];
	struct pair pair = { stack, server };
	void *error;
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, reader, &pair);
	WORKS(dmt_send(stack, fd, "some bytes", 10, 0));
	/* As in Linux, a blocked call continues after the close of its file; closing the stack ends it. */
	WORKS(dmt_close(stack, server));
	EXPECT(EBADF, dmt_close(stack, server));
	WORKS(dmt_stack_close(stack));
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &error);
		if ((intptr_t)error != EBADF)
			wrong++, printf("a reader ended with errno %d\n", (int)(intptr_t)error);
	}
	EXPECT(EBADF, dmt_stack_close(stack));
	EXPECT(EBADF, dmt_poll(stack, &none, 1, 0));
	WORKS(dmt_memory_free(memory));
	EXPECT(EBADF, dmt_memory_free(memory));
	printf("%d calls of the table, %d wrong\n", checked, wrong);
	return wrong != 0;
}
