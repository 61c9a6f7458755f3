/* dmt_epoll_fd in an epoll of the kernel: readable exactly while the stack's epoll has events. Prints failed checks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <pthread.h>
#include <unistd.h>

#include "every_call.h"

/* Waits at most TIMEOUT_MS for the kernel's epoll; returns whether the descriptor is readable. */
static int is_readable(int kernel, int timeout_ms)
{
	struct epoll_event got;

	return epoll_wait(kernel, &got, 1, timeout_ms) == 1 && got.events & EPOLLIN;
}

static dmt_stack *stack;
static int client;

/* Sends the bytes while the main thread waits in the kernel's epoll. */
static void *send_one(void *argument)
{
	WORKS(dmt_send(stack, client, argument, 1, 0));
	return NULL;
}

int main(void)
{
	struct epoll_event readable = { .events = EPOLLIN }, got;
	int kernel = epoll_create1(EPOLL_CLOEXEC), listener, server, epfd, fd, second;
	pthread_t sender;
	char byte = 'x';

	stack = dmt_open("mem:loop", "address=10.77.0.1/24");
	ours.sin_family = AF_INET;
	ours.sin_port = htons(80);
	inet_pton(AF_INET, "10.77.0.1", &ours.sin_addr);
	epfd = dmt_epoll_create1(stack, 0);
	fd = dmt_epoll_fd(stack, epfd);
	listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	client = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (!stack || kernel < 0 || fd < 0 || client < 0 || epoll_ctl(kernel, EPOLL_CTL_ADD, fd, &readable))
		return perror("opening"), 1;
	EXPECT(EINVAL, dmt_epoll_fd(stack, listener));
	EXPECT(EBADF, dmt_epoll_fd(stack, 5));
	IS(1, (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);

	/* A connection is an event of the listener until it is accepted. */
	WORKS(dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(stack, listener, 1));
	WORKS(dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, listener, &readable));
	IS(0, is_readable(kernel, 0));
	WORKS(dmt_connect(stack, client, (struct sockaddr *)&ours, sizeof(ours)));
	IS(1, is_readable(kernel, 20000));
	server = dmt_accept(stack, listener, NULL, NULL);
	WORKS(server);
	IS(0, is_readable(kernel, 0));

	/* Bytes that arrive while the program waits in the kernel's epoll. A second descriptor is readable, too. */
	second = dmt_epoll_fd(stack, epfd);
	WORKS(epoll_ctl(kernel, EPOLL_CTL_ADD, second, &readable));
	WORKS(epoll_ctl(kernel, EPOLL_CTL_DEL, fd, NULL));
	WORKS(dmt_epoll_ctl(stack, epfd, EPOLL_CTL_ADD, server, &readable));
	for (int round = 0; round < 100; round++) {
		IS(0, is_readable(kernel, 0));
		pthread_create(&sender, NULL, send_one, &byte);
		IS(1, is_readable(kernel, 20000));
		pthread_join(sender, NULL);
		IS(1, dmt_epoll_wait(stack, epfd, &got, 1, 0));
		IS(1, is_readable(kernel, 0));
		IS(1, (int)dmt_recv(stack, server, &byte, 1, 0));
		IS(0, dmt_epoll_wait(stack, epfd, &got, 1, 0));
	}
	/* An edge is an event until dmt_epoll_wait returns it. */
	readable.events = EPOLLIN | EPOLLET;
	WORKS(dmt_epoll_ctl(stack, epfd, EPOLL_CTL_MOD, server, &readable));
	WORKS(dmt_send(stack, client, "y", 1, 0));
	IS(1, is_readable(kernel, 20000));
	IS(1, dmt_epoll_wait(stack, epfd, &got, 1, 0));
	IS(0, is_readable(kernel, 0));

	/* The descriptor of a closed epoll is readable. */
	WORKS(dmt_close(stack, epfd));
	IS(1, is_readable(kernel, 0));
	EXPECT(EBADF, dmt_epoll_wait(stack, epfd, &got, 1, 0));
	WORKS(close(fd));
	WORKS(close(second));
	/* So is that of a closed stack. */
	fd = dmt_epoll_fd(stack, dmt_epoll_create1(stack, 0));
	readable.events = EPOLLIN;
	WORKS(epoll_ctl(kernel, EPOLL_CTL_ADD, fd, &readable));
	IS(0, is_readable(kernel, 0));
	WORKS(dmt_stack_close(stack));
	IS(1, is_readable(kernel, 0));
	WORKS(close(fd));
	for (size_t i = 0; i < COUNT(file_calls); i++)
		expect(&file_calls[i], stack, 0, EBADF);
	for (size_t i = 0; i < COUNT(stack_calls); i++)
		expect(&stack_calls[i], stack, 0, EBADF);
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
