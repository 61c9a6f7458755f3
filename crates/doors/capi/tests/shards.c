/* NICs with several shards: a stack for each. Prints failed checks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "every_call.h"

enum { SHARDS = 2 };

static dmt_stack *near[SHARDS], *far[SHARDS];

static int listen_on(dmt_stack *stack)
{
	int listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);

	WORKS(dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(stack, listener, 1));
	return listener;
}

/* A connection of shard I is on shard I at the other end, too: the hash is the same in both directions. */
static void say_hello(int i, int listener)
{
	int client = dmt_socket(near[i], AF_INET, SOCK_STREAM, 0), server;
	char bytes[8] = "";

	WORKS(dmt_connect(near[i], client, (struct sockaddr *)&ours, sizeof(ours)));
	server = dmt_accept(far[i], listener, NULL, NULL);
	WORKS(server);
	WORKS(dmt_send(near[i], client, "hello", 5, 0));
	WORKS(dmt_recv(far[i], server, bytes, 5, MSG_WAITALL));
	if (strcmp(bytes, "hello"))
		wrong++, printf("shard %d received %s\n", i, bytes);
	/* A descriptor is of its stack alone. */
	EXPECT(EBADF, dmt_recv(far[1 - i], server, bytes, 1, 0));
	WORKS(dmt_close(near[i], client));
	WORKS(dmt_close(far[i], server));
}

int main(void)
{
	const char *address = "address=10.77.0.1/24";
	int listeners[SHARDS];

	EXPECT(EFAULT, dmt_open_shards("mem:shards", address, NULL, SHARDS));
	EXPECT(EINVAL, dmt_open_shards("mem:shards", address, near, 0));
	EXPECT(EINVAL, dmt_open_shards("mem:shards", address, near, 65));
	EXPECT(EINVAL, dmt_open_shards("mem:shards", address, near, 1 << 16));
	EXPECT(EINVAL, dmt_open_shards("unix:/no-such-wire", address, near, SHARDS));
	WORKS(dmt_open_shards("mem:shards", address, near, SHARDS));
	WORKS(dmt_open_shards("mem:shards", "address=10.77.0.2/24", far, SHARDS));
	ours.sin_family = AF_INET;
	ours.sin_port = htons(80);
	inet_pton(AF_INET, "10.77.0.2", &ours.sin_addr);
	for (int i = 0; i < SHARDS; i++)
		listeners[i] = listen_on(far[i]);
	for (int i = 0; i < SHARDS; i++)
		say_hello(i, listeners[i]);
	for (int i = 0; i < SHARDS; i++) {
		WORKS(dmt_stack_close(near[i]));
		WORKS(dmt_stack_close(far[i]));
	}
	for (size_t i = 0; i < COUNT(file_calls); i++)
		expect(&file_calls[i], far[0], 0, EBADF);
	for (size_t i = 0; i < COUNT(stack_calls); i++)
		expect(&stack_calls[i], far[1], 0, EBADF);
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
