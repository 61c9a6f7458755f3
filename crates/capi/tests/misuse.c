/* Bad input through the C ABI: every wrong call is an errno, none a crash. Prints the calls that were not.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

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

struct pair {
	dmt_stack *stack;
	int fd;
};

/* Receives until the file is gone, or the stack. */
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
	struct sockaddr_in ours = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct msghdr msg = { 0 };
	struct iovec iov = { .iov_base = NULL, .iov_len = 10 };
	struct pollfd none = { .fd = 3, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	dmt_stack *unknown = (dmt_stack *)12345;
	char bytes[16] = "";
	socklen_t len = sizeof(bytes);
	uint32_t id;
	int number = 1;

	if (dmt_open(NULL, NULL) || errno != EFAULT)
		wrong++, puts("open without a link");
	if (dmt_open("mem:misuse", "mtu=none") || errno != EINVAL)
		wrong++, puts("open with bad settings");
	if (dmt_error(bytes, sizeof(bytes)) < 20 || strncmp(bytes, "mtu cannot be ", 14) || bytes[15])
		wrong++, printf("the reason is %s\n", bytes);
	EXPECT(EFAULT, dmt_error(NULL, 5));

	dmt_stack *stack = dmt_open("mem:misuse", "address=10.77.0.1/24");
	dmt_memory *memory = dmt_memory_new(1 << 20);
	int fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (!stack || !memory || fd < 0)
		return puts("nothing works"), 1;
	inet_pton(AF_INET, "10.77.0.1", &ours.sin_addr);

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
		wrong++, puts("a short buffer for an address was overrun, or its length not told");
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

	/* Two threads on one socket: a connection with ourselves. */
	int listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	WORKS(dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(stack, listener, 1));
	WORKS(dmt_connect(stack, fd, (struct sockaddr *)&ours, sizeof(ours)));
	len = sizeof(bytes);
	int server = dmt_accept(stack, listener, (struct sockaddr *)bytes, &len);
	WORKS(server);
	EXPECT(EISCONN, dmt_connect(stack, fd, (struct sockaddr *)&ours, sizeof(ours)));
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
		wrong++, puts("poll of a foreign file");
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
	/* Who waits already goes on waiting, as in Linux: until the whole stack is closed. */
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
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
