/* Receiving into device memory, with a check of the bytes there.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "every_call.h"

/* Receives at most LEN bytes into device memory and returns how many; checks them. */
static ssize_t into_device_memory(dmt_stack *stack, int fd, dmt_memory *memory, size_t len, const char *expected)
{
	char control[8 * CMSG_SPACE(sizeof(struct dmt_dmabuf_cmsg))], linear[64], seen[64];
	struct iovec iov = { .iov_base = linear, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = dmt_recvmsg(stack, fd, &msg, MSG_SOCK_DEVMEM);

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); n > 0 && cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		struct dmt_dmabuf_cmsg frag;
		struct dmt_dmabuf_token token = { 0, 1 };

		IS(SCM_DEVMEM_DMABUF, cmsg->cmsg_type);
		memcpy(&frag, CMSG_DATA(cmsg), sizeof(frag));
		IS(0, frag.frag_size > sizeof(seen) || frag.frag_size > len);
		WORKS(dmt_memory_read(memory, frag.frag_offset, seen, frag.frag_size));
		IS(0, memcmp(seen, expected, frag.frag_size));
		expected += frag.frag_size;
		token.token_start = frag.frag_token;
		IS(1, dmt_setsockopt(stack, fd, SOL_SOCKET, SO_DEVMEM_DONTNEED, &token, sizeof(token)));
	}
	return n;
}
