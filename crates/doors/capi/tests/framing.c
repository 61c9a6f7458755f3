/* Calls for programs that frame messages: receives of at most N bytes into host and device memory, MSG_PEEK, timeouts, and
 * options of TCP. Prints failed checks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <netinet/tcp.h>
#include <sys/time.h>

#include "device_bytes.h"

static dmt_stack *stack;
static int client, server;

static void connect_both(void)
{
	int listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);

	client = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	WORKS(dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(stack, listener, 1));
	WORKS(dmt_connect(stack, client, (struct sockaddr *)&ours, sizeof(ours)));
	server = dmt_accept(stack, listener, NULL, NULL);
	WORKS(server);
	WORKS(dmt_close(stack, listener));
}

/* A header of known length, then a body of the length in the header. */
static void into_host_memory(void)
{
	char bytes[32];

	IS(11, dmt_send(stack, client, "\x06" "bodies" "\x03" "end", 11, 0));
	IS(1, dmt_recv(stack, server, bytes, 1, MSG_PEEK));
	IS(6, bytes[0]);
	IS(1, dmt_recv(stack, server, bytes, 1, MSG_WAITALL));
	IS(6, dmt_recv(stack, server, bytes, 6, MSG_WAITALL));
	IS(0, memcmp(bytes, "bodies", 6));
	IS(4, dmt_recv(stack, server, bytes, sizeof(bytes), 0));
	IS(0, memcmp(bytes, "\x03" "end", 4));
}

static void timeouts_and_options(void)
{
	struct timeval soon = { .tv_sec = 0, .tv_usec = 1000 }, late = { .tv_sec = 20 }, got;
	int one = 1, seconds = 30, value;
	socklen_t len = sizeof(got);

	WORKS(dmt_setsockopt(stack, server, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)));
	WORKS(dmt_getsockopt(stack, server, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	IS(0, got.tv_sec);
	EXPECT(EAGAIN, dmt_recv(stack, server, some, 1, 0));
	WORKS(dmt_setsockopt(stack, server, SOL_SOCKET, SO_RCVTIMEO, &late, sizeof(late)));
	WORKS(dmt_setsockopt(stack, server, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon)));
	WORKS(dmt_setsockopt(stack, client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
	WORKS(dmt_setsockopt(stack, client, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
	WORKS(dmt_setsockopt(stack, client, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds)));
	len = sizeof(value);
	WORKS(dmt_getsockopt(stack, client, IPPROTO_TCP, TCP_NODELAY, &value, &len));
	IS(1, value);
	WORKS(dmt_getsockopt(stack, client, IPPROTO_TCP, TCP_KEEPIDLE, &value, &len));
	IS(30, value);
}

int main(void)
{
	dmt_memory *memory = dmt_memory_new(4 << 20);
	uint32_t id;

	stack = dmt_open("mem:framing", "address=10.77.0.1/24,rx_queues=1");
	ours.sin_family = AF_INET;
	ours.sin_port = htons(80);
	inet_pton(AF_INET, "10.77.0.1", &ours.sin_addr);
	connect_both();
	into_host_memory();
	timeouts_and_options();
	WORKS(dmt_bind_rx(stack, memory, &id));
	IS(10, dmt_send(stack, client, "headerbody", 10, 0));
	IS(6, into_device_memory(stack, server, memory, 6, "header"));
	IS(4, into_device_memory(stack, server, memory, 60, "body"));
	IS(1, dmt_send(stack, client, "x", 1, 0));
	/* A receive without MSG_SOCK_DEVMEM fails, and does not copy bytes of device memory to the host. */
	EXPECT(EFAULT, dmt_recv(stack, server, some, 1, 0));
	EXPECT(EFAULT, dmt_recv(stack, server, some, 1, MSG_PEEK));
	IS(1, into_device_memory(stack, server, memory, 1, "x"));
	WORKS(dmt_stack_close(stack));
	WORKS(dmt_memory_free(memory));
	for (size_t i = 0; i < COUNT(file_calls); i++)
		expect(&file_calls[i], stack, 0, EBADF);
	for (size_t i = 0; i < COUNT(stack_calls); i++)
		expect(&stack_calls[i], stack, 0, EBADF);
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
