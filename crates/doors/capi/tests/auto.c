/* A stack whose address comes from the network: connects to PORT of the DHCP server, and prints its address.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <devmem_tcp.h>

static int fail(const char *what)
{
	char reason[512] = "";

	dmt_error(reason, sizeof(reason));
	printf("%s: %s\n", what, reason);
	return 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in server = { .sin_family = AF_INET }, ours;
	socklen_t len = sizeof(ours);
	char text[INET_ADDRSTRLEN], byte;

	if (argc != 3)
		return 2;
	dmt_stack *stack = dmt_open(argv[1], "address=auto");
	if (!stack)
		return fail("dmt_open");
	server.sin_port = htons((uint16_t)atoi(argv[2]));
	inet_pton(AF_INET, "10.77.0.1", &server.sin_addr);
	int fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	if (dmt_connect(stack, fd, (struct sockaddr *)&server, sizeof(server)))
		return fail("dmt_connect");
	if (dmt_getsockname(stack, fd, (struct sockaddr *)&ours, &len))
		return fail("dmt_getsockname");
	/* The server sends it once the address was renewed. */
	if (dmt_recv(stack, fd, &byte, 1, 0) != 1)
		return fail("dmt_recv");
	puts(inet_ntop(AF_INET, &ours.sin_addr, text, sizeof(text)));
	if (dmt_stack_close(stack))
		return fail("dmt_stack_close");
	return 0;
}
