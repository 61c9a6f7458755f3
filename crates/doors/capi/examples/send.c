/* Sends from device memory with one thread and epoll. The memory is a ring of slots, and a slot is reused only when the error
 * queue has reported that its send is complete. The receiver, an ordinary program, checks every byte.
 *
 *   cc send.c $(pkg-config --cflags --libs devmemtcp) -lpthread -o send && ./send
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/errqueue.h>

#include <devmem_tcp.h>

#define TOTAL (4 << 20)
#define SLOT 65536
#define SLOTS 4
#define PORT 5202

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

/* A send that is not complete: its bytes of the stream. The stack numbers the sends of a socket from 0. */
struct slot {
	size_t from;
	size_t len;
	uint32_t number;
	int busy;
};

struct sender {
	dmt_stack *stack;
	dmt_memory *memory;
	uint32_t binding;
	int fd;
	struct slot slots[SLOTS];
	uint32_t next_number;
	size_t written; /* bytes of the stream queued on the socket */
	size_t freed;   /* bytes that are complete */
	unsigned completions;
};

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
	struct sockaddr_in to;

	memset(&to, 0, sizeof(to));
	to.sin_family = AF_INET;
	to.sin_port = htons(PORT);
	inet_pton(AF_INET, ip, &to.sin_addr);
	return to;
}

struct receiver {
	dmt_stack *stack;
	int listener;
};

static void listen_at(struct receiver *it, const char *ip)
{
	struct sockaddr_in ours = address(ip);

	it->listener = dmt_socket(it->stack, AF_INET, SOCK_STREAM, 0);
	if (it->listener < 0 || dmt_bind(it->stack, it->listener, (struct sockaddr *)&ours, sizeof(ours)) ||
	    dmt_listen(it->stack, it->listener, 1))
		fail("listen");
}

/* Receives everything with recv(2) and counts the correct bytes. */
static void *receive_all(void *argument)
{
	struct receiver *it = argument;
	dmt_stack *stack = it->stack;
	static size_t right;
	unsigned char bytes[8192];
	ssize_t n;
	size_t at = 0;
	int fd = dmt_accept(stack, it->listener, NULL, NULL);

	if (fd < 0)
		fail("accept");
	while ((n = dmt_recv(stack, fd, bytes, sizeof(bytes), 0)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			right += bytes[i] == byte_at(at++);
	}
	if (n < 0 || dmt_close(stack, fd) || dmt_close(stack, it->listener))
		fail("the receiver");
	return &right;
}

/* Writes the next bytes to a free slot and sends them from there. Returns 0 when there is nothing to do now. */
static int send_next(struct sender *it)
{
	static unsigned char bytes[SLOT];
	char control[CMSG_SPACE(sizeof(uint32_t))];
	struct iovec iov;
	struct msghdr msg;
	struct cmsghdr *cmsg;
	struct slot *slot = NULL;
	size_t len = TOTAL - it->written < SLOT ? TOTAL - it->written : SLOT;
	ssize_t sent;

	for (int i = 0; i < SLOTS && !slot; i++) {
		if (!it->slots[i].busy)
			slot = &it->slots[i];
	}
	if (!slot || !len)
		return 0;
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(it->written + i);
	if (dmt_memory_write(it->memory, (size_t)(slot - it->slots) * SLOT, bytes, len))
		fail("writing device memory");

	memset(&msg, 0, sizeof(msg));
	memset(control, 0, sizeof(control));
	/* Not an address: the offset in the memory of the binding in the control message. */
	iov.iov_base = (void *)(uintptr_t)((size_t)(slot - it->slots) * SLOT);
	iov.iov_len = len;
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = control;
	msg.msg_controllen = sizeof(control);
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_DEVMEM_DMABUF;
	cmsg->cmsg_len = CMSG_LEN(sizeof(it->binding));
	memcpy(CMSG_DATA(cmsg), &it->binding, sizeof(it->binding));

	sent = dmt_sendmsg(it->stack, it->fd, &msg, MSG_ZEROCOPY);
	if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS))
		return 0;
	if (sent < 0)
		fail("sendmsg");
	slot->from = it->written;
	slot->len = (size_t)sent;
	slot->number = it->next_number++;
	slot->busy = 1;
	it->written += (size_t)sent;
	return 1;
}

/* Reads the error queue and frees the slots of complete sends. */
static void complete(struct sender *it)
{
	char control[CMSG_SPACE(sizeof(struct sock_extended_err) + sizeof(struct sockaddr_in))];
	struct sock_extended_err told;
	struct msghdr msg;
	struct cmsghdr *cmsg;

	for (;;) {
		memset(&msg, 0, sizeof(msg));
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		if (dmt_recvmsg(it->stack, it->fd, &msg, MSG_ERRQUEUE) < 0) {
			if (errno != EAGAIN)
				fail("the error queue");
			return;
		}
		cmsg = CMSG_FIRSTHDR(&msg);
		if (!cmsg || cmsg->cmsg_level != SOL_IP || cmsg->cmsg_type != IP_RECVERR)
			fail("another message");
		memcpy(&told, CMSG_DATA(cmsg), sizeof(told));
		if (told.ee_errno || told.ee_origin != SO_EE_ORIGIN_ZEROCOPY || told.ee_code)
			fail("another error, or bytes that were copied");
		it->completions++;
		/* Sends ee_info to ee_data, inclusive. */
		for (int i = 0; i < SLOTS; i++) {
			struct slot *slot = &it->slots[i];

			if (slot->busy && slot->number - told.ee_info <= told.ee_data - told.ee_info) {
				it->freed += slot->len;
				slot->busy = 0;
			}
		}
	}
}

static void connect_and_watch(struct sender *it, int epfd)
{
	struct sockaddr_in to = address("10.77.0.2");
	struct epoll_event watch;
	int on = 1;

	memset(&watch, 0, sizeof(watch));
	watch.events = EPOLLOUT | EPOLLET; /* EPOLLERR is always reported */
	it->fd = dmt_socket(it->stack, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (it->fd < 0 || dmt_setsockopt(it->stack, it->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)))
		fail("socket");
	if (dmt_connect(it->stack, it->fd, (struct sockaddr *)&to, sizeof(to)) && errno != EINPROGRESS)
		fail("connect");
	if (epfd < 0 || dmt_epoll_ctl(it->stack, epfd, EPOLL_CTL_ADD, it->fd, &watch))
		fail("epoll");
}

int main(void)
{
	static struct sender it;
	struct receiver peer = { dmt_open("mem:send", "address=10.77.0.2/24"), -1 };
	pthread_t receiver;
	void *right;
	int epfd;

	it.stack = dmt_open("mem:send", "address=10.77.0.1/24");
	it.memory = dmt_memory_new(SLOT * SLOTS);
	if (!peer.stack || !it.stack || !it.memory)
		fail("two stacks on a wire");
	if (dmt_bind_tx(it.stack, it.memory, &it.binding))
		fail("bind_tx");
	listen_at(&peer, "10.77.0.2");
	if (pthread_create(&receiver, NULL, receive_all, &peer))
		fail("pthread_create");
	epfd = dmt_epoll_create1(it.stack, 0);
	connect_and_watch(&it, epfd);
	while (it.freed < TOTAL) {
		struct epoll_event event;

		if (dmt_epoll_wait(it.stack, epfd, &event, 1, -1) < 0)
			fail("epoll_wait");
		if (event.events & EPOLLHUP)
			fail("the connection is over");
		if (event.events & EPOLLERR)
			complete(&it);
		while (send_next(&it))
			;
	}
	if (dmt_shutdown(it.stack, it.fd, SHUT_WR))
		fail("shutdown");
	pthread_join(receiver, &right);
	printf("%zu bytes sent from device memory and complete, %zu of them received correctly\n", it.freed,
	       *(size_t *)right);
	if (dmt_close(it.stack, epfd) || dmt_close(it.stack, it.fd) || dmt_unbind(it.stack, it.binding) ||
	    dmt_stack_close(it.stack) || dmt_stack_close(peer.stack) || dmt_memory_free(it.memory))
		fail("close");
	return it.freed == TOTAL && *(size_t *)right == TOTAL && it.completions ? 0 : 1;
}
