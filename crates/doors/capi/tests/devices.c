/* Memory of a GPU: made, bound, received into, sent from, and named for other libraries. The argument is the kind: cuda, hip or
 * vulkan. Prints failed checks; SKIP and the reason if there is no such device.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_bytes.h"

/* C99 hides this name of Linux. */
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

#define BYTES (4 << 20)

static int sender_fd, receiver_fd;

static void connect_both(dmt_stack *sender, dmt_stack *receiver)
{
	int listener = dmt_socket(receiver, AF_INET, SOCK_STREAM, 0);

	sender_fd = dmt_socket(sender, AF_INET, SOCK_STREAM, 0);
	WORKS(dmt_bind(receiver, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(receiver, listener, 1));
	WORKS(dmt_connect(sender, sender_fd, (struct sockaddr *)&ours, sizeof(ours)));
	receiver_fd = dmt_accept(receiver, listener, NULL, NULL);
	WORKS(receiver_fd);
	WORKS(dmt_close(receiver, listener));
}

/* Sends LEN bytes at OFFSET of the memory of the binding ID, and waits until the send is complete. */
static void send_from(dmt_stack *stack, uint32_t id, size_t offset, size_t len)
{
	char control[CMSG_SPACE(sizeof(id))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)offset, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	struct pollfd wait = { .fd = sender_fd };
	int one = 1;

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_DEVMEM_DMABUF;
	cmsg->cmsg_len = CMSG_LEN(sizeof(id));
	memcpy(CMSG_DATA(cmsg), &id, sizeof(id));
	WORKS(dmt_setsockopt(stack, sender_fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)));
	IS((long long)len, dmt_sendmsg(stack, sender_fd, &msg, MSG_ZEROCOPY));
	/* The error queue has a completion. */
	IS(1, dmt_poll(stack, &wait, 1, 60000));
	IS(POLLERR, wait.revents & POLLERR);
}

/* The names of MEMORY for other libraries: CUDA and HIP take an address, Vulkan a dma-buf. */
static void names_for_others(dmt_memory *memory, int is_vulkan)
{
	uint64_t address = 0;
	struct stat file;
	int fd;

	if (is_vulkan) {
		EXPECT(EOPNOTSUPP, dmt_memory_device_ptr(memory, &address));
	} else {
		WORKS(dmt_memory_device_ptr(memory, &address));
		IS(0, address % 4096);
		IS(1, address != 0);
		EXPECT(EFAULT, dmt_memory_device_ptr(memory, NULL));
	}
	fd = dmt_memory_fd(memory);
	if (fd < 0 && is_vulkan && errno == EOPNOTSUPP)
		return;
	WORKS(fd);
	WORKS(fstat(fd, &file));
	WORKS(close(fd));
}

/* A child of fork(2) can neither use MEMORY nor make more memory of the GPU; the parent continues. */
static void child_is_refused(dmt_memory *memory, dmt_memory *(*make)(int, size_t))
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		EXPECT(EOWNERDEAD, dmt_memory_read(memory, 0, some, 1));
		IS(0, make(0, BYTES) != NULL);
		IS(EOWNERDEAD, errno);
		fflush(stdout);
		_exit(wrong);
	}
	WORKS(child);
	IS(child, waitpid(child, &status, 0));
	IS(0, status);
	WORKS(dmt_memory_read(memory, 0, some, 1));
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	int is_vulkan = !strcmp(kind, "vulkan");
	dmt_memory *(*make)(int, size_t) = is_vulkan ? dmt_memory_vulkan
					   : !strcmp(kind, "hip") ? dmt_memory_hip : dmt_memory_cuda;
	dmt_memory *memory = make(0, BYTES);
	dmt_stack *sender, *receiver;
	char reason[1024];
	uint32_t rx, tx;

	if (!memory) {
		dmt_error(reason, sizeof(reason));
		printf("SKIP %s\n", reason);
		return 0;
	}
	IS(BYTES, dmt_memory_size(memory));
	names_for_others(memory, is_vulkan);
	child_is_refused(memory, make);
	IS(0, make(4711, BYTES) != NULL);
	IS(ENODEV, errno);
	IS(0, make(0, 0) != NULL);
	IS(EINVAL, errno);

	sender = dmt_open("mem:devices", "address=10.77.0.1/24,rx_queues=1");
	receiver = dmt_open("mem:devices", "address=10.77.0.2/24,rx_queues=1");
	ours.sin_family = AF_INET;
	ours.sin_port = htons(5201);
	inet_pton(AF_INET, "10.77.0.2", &ours.sin_addr);
	connect_both(sender, receiver);
	WORKS(dmt_bind_rx(receiver, memory, &rx));
	IS(10, dmt_send(sender, sender_fd, "headerbody", 10, 0));
	IS(6, into_device_memory(receiver, receiver_fd, memory, 6, "header"));
	IS(4, into_device_memory(receiver, receiver_fd, memory, 60, "body"));
	EXPECT(EFAULT, dmt_memory_read(memory, BYTES, some, 1));

	/* From one memory of the GPU to another one. */
	some_memory = make(0, 65536);
	WORKS(dmt_memory_write(some_memory, 4096 - 3, "between GPUs", 12));
	WORKS(dmt_bind_tx(sender, some_memory, &tx));
	send_from(sender, tx, 4096 - 3, 12);
	IS(12, into_device_memory(receiver, receiver_fd, memory, 60, "between GPUs"));

	WORKS(dmt_memory_free(some_memory));
	WORKS(dmt_memory_free(memory));
	WORKS(dmt_close(sender, sender_fd));
	WORKS(dmt_close(receiver, receiver_fd));
	WORKS(dmt_stack_close(sender));
	WORKS(dmt_stack_close(receiver));
	for (size_t i = 0; i < COUNT(file_calls); i++)
		expect(&file_calls[i], sender, 0, EBADF);
	for (size_t i = 0; i < COUNT(stack_calls); i++)
		expect(&stack_calls[i], sender, 0, EBADF);
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
