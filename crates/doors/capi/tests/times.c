/* Timestamps of sends and receives through the C ABI, as in Linux. Prints failed checks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* struct timespec, which C99 lacks */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>

#include <devmem_tcp.h>

#ifndef SO_TIMESTAMPING_OLD
#define SO_TIMESTAMPING_OLD 37
#define SO_TIMESTAMPNS_NEW 64
#endif

static int wrong;

#define CHECK(what)                                                                                               \
	do {                                                                                                      \
		if (!(what)) {                                                                                    \
			printf("line %d: not %s (errno %d)\n", __LINE__, #what, errno);                           \
			wrong++;                                                                                  \
		}                                                                                                 \
	} while (0)

/* Copies the data of the first message of this kind; 0 if there is none, or it has another length. */
static int message(struct msghdr *msg, int level, int type, void *data, size_t len)
{
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		if (cmsg->cmsg_level != level || cmsg->cmsg_type != type)
			continue;
		if (cmsg->cmsg_len < CMSG_LEN(len))
			return 0;
		memcpy(data, CMSG_DATA(cmsg), len);
		return 1;
	}
	return 0;
}

static ssize_t receive(dmt_stack *stack, int fd, struct msghdr *msg, char *control, size_t room, int flags)
{
	static char bytes[64];
	static struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };

	memset(msg, 0, sizeof(*msg));
	memset(control, 0, room);
	msg->msg_iov = &iov;
	msg->msg_iovlen = 1;
	msg->msg_control = control;
	msg->msg_controllen = room;
	return dmt_recvmsg(stack, fd, msg, flags);
}

int main(void)
{
	struct sockaddr_in ours = { .sin_family = AF_INET, .sin_port = htons(80) };
	int sends = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_ACK | SOF_TIMESTAMPING_SOFTWARE |
		    SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
	int receives = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	dmt_stack *stack = dmt_open("mem:times", "address=10.77.0.1/24");
	union {
		char bytes[512];
		struct cmsghdr aligned;
	} control;
	struct timespec received, before = { 0 };
	struct scm_timestamping stamp;
	struct sock_extended_err error;
	struct msghdr msg;
	int on = 1;

	inet_pton(AF_INET, "10.77.0.1", &ours.sin_addr);
	int listener = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	int client = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);
	CHECK(!dmt_bind(stack, listener, (struct sockaddr *)&ours, sizeof(ours)));
	CHECK(!dmt_listen(stack, listener, 1));
	CHECK(!dmt_connect(stack, client, (struct sockaddr *)&ours, sizeof(ours)));
	int server = dmt_accept(stack, listener, NULL, NULL);
	CHECK(server >= 0);
	CHECK(!dmt_setsockopt(stack, client, SOL_SOCKET, SO_TIMESTAMPING_OLD, &sends, sizeof(sends)));
	CHECK(!dmt_setsockopt(stack, server, SOL_SOCKET, SO_TIMESTAMPNS_NEW, &on, sizeof(on)));
	CHECK(!dmt_setsockopt(stack, server, SOL_SOCKET, SO_TIMESTAMPING_OLD, &receives, sizeof(receives)));

	for (int sent = 1; sent <= 3; sent++) {
		CHECK(dmt_send(stack, client, "0123456789", 10, 0) == 10);
		CHECK(receive(stack, server, &msg, control.bytes, sizeof(control), 0) == 10);
		/* If the last option was set with its old number, all options have the old format. */
		CHECK(message(&msg, SOL_SOCKET, 35, &received, sizeof(received)));
		CHECK(message(&msg, SOL_SOCKET, SO_TIMESTAMPING_OLD, &stamp, sizeof(stamp)));
		CHECK(!memcmp(&stamp.ts[0], &received, sizeof(received)));
		CHECK(stamp.ts[1].tv_sec == 0 && stamp.ts[2].tv_sec == 0);
		/* A wall-clock time of this century, not earlier than the last. */
		CHECK(received.tv_sec > 1500000000 && received.tv_nsec < 1000000000);
		CHECK(received.tv_sec > before.tv_sec ||
		      (received.tv_sec == before.tv_sec && received.tv_nsec >= before.tv_nsec));
		before = received;

		for (int seen = 0; seen < 2; seen++) {
			struct pollfd told = { .fd = client, .events = 0 };

			CHECK(dmt_poll(stack, &told, 1, -1) == 1 && told.revents == POLLERR);
			CHECK(receive(stack, client, &msg, control.bytes, sizeof(control), MSG_ERRQUEUE) == 0);
			CHECK(msg.msg_flags == MSG_ERRQUEUE);
			CHECK(message(&msg, SOL_SOCKET, SO_TIMESTAMPING_OLD, &stamp, sizeof(stamp)));
			CHECK(message(&msg, SOL_IP, IP_RECVERR, &error, sizeof(error)));
			CHECK(error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && error.ee_errno == ENOMSG);
			CHECK(error.ee_info == (unsigned)(seen ? SCM_TSTAMP_ACK : SCM_TSTAMP_SND));
			CHECK(error.ee_data == (unsigned)(10 * sent - 1));
			CHECK(stamp.ts[0].tv_sec > 1500000000);
		}
	}
	CHECK(!dmt_stack_close(stack));
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
