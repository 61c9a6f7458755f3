/* Receives into device memory. Two stacks are joined by an in-memory wire: one sends, the other receives into bound memory,
 * checks the bytes there and returns the frags.
 *
 *   cc receive.c $(pkg-config --cflags --libs devmemtcp) -lpthread -o receive && ./receive
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <devmem_tcp.h>

#define TOTAL (1 << 20)
#define PORT 5201

static void fail(const char *what)
{
	char reason[512] = "";
	int error = errno;

	dmt_error(reason, sizeof(reason));
	fprintf(stderr, "%s: %s %s\n", what, strerror(error), reason);
	exit(1);
}

static unsigned char byte_at(size_t at)
{
	return (unsigned char)(at * 31 + (at >> 8));
}

static struct sockaddr_in address(const char *ip)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	inet_pton(AF_INET, ip, &to.sin_addr);
	return to;
}

static void *send_all(void *link)
{
	static unsigned char bytes[TOTAL];
	struct sockaddr_in to = address("10.77.0.2");
	dmt_stack *stack = dmt_open(link, "address=10.77.0.1/24");
	int fd;

	if (!stack)
		fail("the sender's stack");
	for (size_t at = 0; at < TOTAL; at++)
		bytes[at] = byte_at(at);
	fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || dmt_connect(stack, fd, (struct sockaddr *)&to, sizeof(to)))
		fail("connect");
	if (dmt_write(stack, fd, bytes, TOTAL) != TOTAL)
		fail("write");
	/* The peer closes when it has everything: dmt_stack_close does not wait for longer than two seconds. */
	if (dmt_shutdown(stack, fd, SHUT_WR) || dmt_read(stack, fd, bytes, 1))
		fail("shutdown");
	if (dmt_close(stack, fd) || dmt_stack_close(stack))
		fail("close");
	return NULL;
}

/* Receives once; returns the bytes, which lie in device memory or, rarely, in `linear`. */
static ssize_t receive(dmt_stack *stack, int fd, dmt_memory *memory, size_t *position, size_t *in_device)
{
	char linear[65536];
	char control[64 * CMSG_SPACE(sizeof(struct dmt_dmabuf_cmsg))];
	struct iovec iov = { .iov_base = linear, .iov_len = sizeof(linear) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = dmt_recvmsg(stack, fd, &msg, MSG_SOCK_DEVMEM);

	if (n < 0)
		fail("recvmsg");
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		struct dmt_dmabuf_cmsg frag;
		struct dmt_dmabuf_token token;
		unsigned char seen[65536];

		memcpy(&frag, CMSG_DATA(cmsg), sizeof(frag));
		if (cmsg->cmsg_type != SCM_DEVMEM_DMABUF)
			continue;
		if (frag.frag_size > sizeof(seen) ||
		    dmt_memory_read(memory, frag.frag_offset, seen, frag.frag_size))
			fail("reading device memory");
		for (size_t at = 0; at < frag.frag_size; at++) {
			if (seen[at] != byte_at(*position + at)) {
				fprintf(stderr, "byte %zu is wrong\n", *position + at);
				exit(1);
			}
		}
		*position += frag.frag_size;
		*in_device += frag.frag_size;
		token.token_start = frag.frag_token;
		token.token_count = 1;
		if (dmt_setsockopt(stack, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, &token, sizeof(token)) != 1)
			fail("giving a frag back");
	}
	return n;
}

int main(void)
{
	char link[] = "mem:example";
	struct sockaddr_in ours = address("10.77.0.2");
	size_t position = 0, in_device = 0, total = 0;
	struct dmt_stats stats;
	pthread_t sender;
	uint32_t id;
	ssize_t n;
	int listener, fd;

	dmt_stack *stack = dmt_open(link, "address=10.77.0.2/24,rx_queues=1");
	dmt_memory *memory = dmt_memory_new(4 << 20);

	if (!stack || !memory)
		fail("the receiver's stack");
	if (dmt_bind_rx(stack, memory, &id))
		fail("bind_rx");
	listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)) ||
	    dmt_listen(stack, listener, 1))
		fail("listen");
	if (pthread_create(&sender, NULL, send_all, link))
		fail("pthread_create");
	fd = dmt_accept(stack, listener, NULL, NULL);
	if (fd < 0)
		fail("accept");
	while ((n = receive(stack, fd, memory, &position, &in_device)) > 0)
		total += (size_t)n;
	/* The sender waits until this end is closed. */
	if (dmt_close(stack, fd))
		fail("close");
	pthread_join(sender, NULL);
	if (dmt_get_stats(stack, &stats, sizeof(stats)))
		fail("get_stats");
	printf("%zu bytes, %zu of them in device memory, %llu packets dropped\n", total, in_device,
	       (unsigned long long)stats.drops);
	if (dmt_stack_close(stack) || dmt_memory_free(memory))
		fail("close");
	/* A handle that was closed is an error, not a crash. */
	if (dmt_socket(stack, AF_INET, SOCK_STREAM, 0) != -1 || errno != EBADF)
		fail("a closed stack");
	return total == TOTAL && in_device == TOTAL ? 0 : 1;
}
