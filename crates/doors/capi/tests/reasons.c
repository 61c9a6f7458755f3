/* dmt_error returns the call and the reason of the last failure, and its messages name functions of C. Prints failed checks.
 *
 * With the argument "tap", run by a user without privileges: a TAP cannot be created, and the errno says why.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* setenv, which C99 lacks */
#include <stdlib.h>
#include <sys/time.h>

#include "every_call.h"

/* Checks that the last reason contains `expected`, and names no function of the Rust library. */
static void reason_line(int line, const char *expected)
{
	static const char *const rust[] = { "devmem_tcp::", "Dmabuf::", "NetdevBuilder", ".address(", "drop " };
	char text[1024] = "";

	if (dmt_error(text, sizeof(text)) < 0 || !strstr(text, expected)) {
		printf("line %d: \"%s\" does not contain \"%s\"\n", line, text, expected);
		wrong++;
	}
	for (size_t i = 0; i < COUNT(rust); i++) {
		if (strstr(text, rust[i])) {
			printf("line %d: \"%s\" contains \"%s\"\n", line, text, rust[i]);
			wrong++;
		}
	}
}
#define REASON(expected) reason_line(__LINE__, expected)

#define NULL_IS(error, call)                                                                                      \
	do {                                                                                                      \
		errno = 0;                                                                                        \
		if ((call) || errno != (error)) {                                                                 \
			printf("line %d: %s: errno %d\n", __LINE__, #call, errno);                                \
			wrong++;                                                                                  \
		}                                                                                                 \
	} while (0)

static void without_privileges(void)
{
	NULL_IS(EPERM, dmt_open("tap:dmreason", "address=10.77.0.2/24"));
	REASON("dmt_open: EPERM: no permission to attach to TAP dmreason");
	REASON("run as root, or let root create the TAP");
}

static void opening(void)
{
	dmt_stack *several[2];

	NULL_IS(EINVAL, dmt_open("mem:r", ""));
	REASON("dmt_open: EINVAL: the stack has no address; add one to SETTINGS: address=");
	NULL_IS(EINVAL, dmt_open("mem:r", "address=10.77.0.1"));
	REASON("'10.77.0.1' is not an address with a prefix length");
	NULL_IS(EINVAL, dmt_open("wire", "address=10.77.0.1/24"));
	REASON("write tap:NAME");
	NULL_IS(EINVAL, dmt_open("mem:r", "address=10.77.0.1/24,rx_queues=0"));
	REASON("0 rx queues: take 1 to ");
	EXPECT(EINVAL, dmt_open_shards("mem:r", "address=10.77.0.1/24", several, 0));
	REASON("dmt_open_shards: EINVAL: a NIC has at least one shard");
	EXPECT(EINVAL, dmt_open_shards("unix:/no-such-wire", "address=10.77.0.1/24", several, 2));
	REASON("its socket is one queue");
	NULL_IS(EFAULT, dmt_open(NULL, ""));
	REASON("dmt_open: EFAULT: ");
}

static void binding(dmt_stack *stack)
{
	dmt_memory *odd = dmt_memory_new(65536 + 4096), *memory = dmt_memory_new(1 << 20);
	uint32_t id;

	NULL_IS(ENOMEM, dmt_memory_new(1));
	REASON("dmt_memory_new: ENOMEM: 1 bytes of device memory: the size must be a positive multiple of 4096");
	EXPECT(EINVAL, dmt_bind_rx(stack, odd, &id));
	REASON("dmt_bind_rx: EINVAL: the size of the memory is not a multiple of 65536 bytes");
	WORKS(dmt_bind_rx(stack, memory, &id));
	EXPECT(EEXIST, dmt_bind_rx(stack, memory, &id));
	REASON("dmt_bind_rx: EEXIST: the stack receives into the memory with binding id ");
	REASON("dmt_unbind");
	EXPECT(EINVAL, dmt_unbind(stack, 4711));
	REASON("dmt_unbind: EINVAL: there is no binding with the id 4711");
	WORKS(dmt_unbind(stack, id));
	EXPECT(EFAULT, dmt_memory_read(memory, 1 << 20, some, 1));
	REASON("dmt_memory_read: EFAULT: ");
	WORKS(dmt_memory_free(odd));
	WORKS(dmt_memory_free(memory));
	EXPECT(EBADF, dmt_bind_tx(stack, memory, &id));
	REASON("dmt_bind_tx: EBADF: the memory is NULL, closed or was never created");
}

/* Memory of the kernel, if this machine has it; otherwise the reason says what is missing. */
static void kernel_memory(void)
{
	int null = open("/dev/null", O_RDWR);
	dmt_memory *memory;
	char byte = 'x';

	NULL_IS(EBADF, dmt_memory_import(-1));
	REASON("dmt_memory_import: EBADF: the file descriptor -1 cannot be duplicated");
	NULL_IS(EINVAL, dmt_memory_import(null));
	REASON("dmt_memory_import: EINVAL: the descriptor is not an open dma-buf");
	/* The caller keeps the descriptor. */
	WORKS(fcntl(null, F_GETFD));
	NULL_IS(EFAULT, dmt_memory_heap(NULL, 4096));
	if (dmt_memory_heap("no-such-heap", 4096))
		wrong++, puts("memory of a heap that does not exist");
	REASON("dmt_memory_heap: ");
	memory = dmt_memory_udmabuf(4096);
	if (!memory) {
		REASON("dmt_memory_udmabuf: ");
		return;
	}
	if (dmt_memory_size(memory) != 4096)
		wrong++, puts("the size of a dma-buf is wrong");
	WORKS(dmt_memory_write(memory, 4095, &byte, 1));
	WORKS(dmt_memory_read(memory, 4095, some, 1));
	if (some[0] != 'x')
		wrong++, puts("a byte of a dma-buf is wrong");
	WORKS(dmt_memory_free(memory));
}

/* What memory of GPUs refuses on a machine without one. */
static void gpu_memory(void)
{
	dmt_memory *memory = dmt_memory_new(4096);
	uint64_t address;

	NULL_IS(EINVAL, dmt_memory_cuda(-1, 4096));
	REASON("dmt_memory_cuda: EINVAL: -1 is not the number of a device");
	NULL_IS(EINVAL, dmt_memory_hip(-1, 4096));
	REASON("dmt_memory_hip: EINVAL: ");
	NULL_IS(EINVAL, dmt_memory_vulkan(-1, 4096));
	REASON("dmt_memory_vulkan: EINVAL: ");
	setenv("DEVMEM_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	NULL_IS(ENODEV, dmt_memory_cuda(0, 4096));
	REASON("dmt_memory_cuda: ENODEV: /nowhere/libcuda.so.1 cannot be loaded: ");
	REASON("install the driver of the GPU");
	EXPECT(EOPNOTSUPP, dmt_memory_device_ptr(memory, &address));
	REASON("dmt_memory_device_ptr: EOPNOTSUPP: the memory has no address on a device; dmt_memory_cuda");
	EXPECT(EINVAL, dmt_memory_fd(memory));
	REASON("dmt_memory_fd: EINVAL: memory of dmt_memory_new has no file descriptor");
	WORKS(dmt_memory_free(memory));
	EXPECT(EBADF, dmt_memory_device_ptr(memory, &address));
	EXPECT(EBADF, dmt_memory_fd(memory));
}

/* Interfaces of the kernel: every machine has lo, which does not support device memory. */
static void kernel_nics(void)
{
	dmt_memory *memory = dmt_memory_new(1 << 20);
	dmt_nic *nic = dmt_nic_open("lo", NULL);
	uint32_t id;

	NULL_IS(0, !nic);
	EXPECT(EINVAL, dmt_nic_bind_rx(nic, memory, &id));
	REASON("dmt_nic_bind_rx: EINVAL: the interface is not set up for receiving; open it with receive=");
	EXPECT(EINVAL, dmt_nic_bind_tx(nic, memory, &id));
	REASON("dmt_nic_bind_tx: EINVAL: memory of dmt_memory_new is not a dma-buf");
	EXPECT(EFAULT, dmt_nic_bind_tx(nic, memory, NULL));
	EXPECT(EINVAL, dmt_nic_unbind(nic, 1));
	WORKS(dmt_nic_close(nic));
	EXPECT(EBADF, dmt_nic_close(nic));
	REASON("dmt_nic_close: EBADF: the interface is NULL, closed or was never created");
	EXPECT(EBADF, dmt_nic_bind_tx(nic, memory, &id));
	EXPECT(EBADF, dmt_nic_bind_rx(NULL, memory, &id));
	NULL_IS(EFAULT, dmt_nic_open(NULL, NULL));
	NULL_IS(EINVAL, dmt_nic_open("lo", "receive=here"));
	REASON("write receive=10.77.0.2:5201");
	if (dmt_nic_open("lo", "receive=127.0.0.1:5201"))
		wrong++, puts("lo was set up for device memory");
	REASON("dmt_nic_open: E");
	if (dmt_nic_open("dmnothere", "") || errno == 0)
		wrong++, puts("an interface that does not exist was opened");
	REASON("there is no interface dmnothere");
	WORKS(dmt_memory_free(memory));
}

/* A failed call without a specific reason replaces the reason of an earlier call. */
static void later_failures(dmt_stack *stack)
{
	int fd = dmt_socket(stack, AF_INET, SOCK_STREAM, 0);

	NULL_IS(EINVAL, dmt_open("mem:r", "mtu=none"));
	REASON("dmt_open: EINVAL: mtu cannot be");
	EXPECT(ENOTCONN, dmt_recv(stack, fd, some, 1, 0));
	REASON("dmt_recv: ENOTCONN: ");
	WORKS(dmt_close(stack, fd));
	REASON("dmt_recv: ENOTCONN: ");
	EXPECT(EBADF, dmt_close(stack, fd));
	REASON("dmt_close: EBADF: the descriptor is not open in this stack");
	EXPECT(EBADF, dmt_socket(NULL, AF_INET, SOCK_STREAM, 0));
	REASON("dmt_socket: EBADF: the stack is NULL, closed or was never created");
}

/* A receive that finds nothing because the program keeps all frags says so. */
static void kept_frags(void)
{
	dmt_stack *sender = dmt_open("mem:kept", "address=10.77.0.1/24,rx_queues=1"),
		  *receiver = dmt_open("mem:kept", "address=10.77.0.2/24,rx_queues=1");
	dmt_memory *memory = dmt_memory_new(1 << 20);
	int listener = dmt_socket(receiver, AF_INET, SOCK_STREAM, 0), from = dmt_socket(sender, AF_INET, SOCK_STREAM, 0), to;
	static char bytes[2 << 20], control[64 << 10], linear[4096];
	struct timeval soon = { .tv_usec = 500000 };
	uint32_t id;

	ours.sin_family = AF_INET;
	ours.sin_port = htons(5201);
	inet_pton(AF_INET, "10.77.0.2", &ours.sin_addr);
	WORKS(dmt_bind_rx(receiver, memory, &id));
	WORKS(dmt_bind(receiver, listener, (struct sockaddr *)&ours, sizeof(ours)));
	WORKS(dmt_listen(receiver, listener, 1));
	WORKS(dmt_connect(sender, from, (struct sockaddr *)&ours, sizeof(ours)));
	to = dmt_accept(receiver, listener, NULL, NULL);
	WORKS(dmt_setsockopt(receiver, to, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)));
	EXPECT(EAGAIN, dmt_recv(receiver, to, some, 1, 0));
	REASON("dmt_recv: EAGAIN: ");
	/* More than the memory has room for: it is queued, and not sent. */
	WORKS(dmt_send(sender, from, bytes, sizeof(bytes), MSG_DONTWAIT));
	for (;;) {
		struct iovec iov = { .iov_base = linear, .iov_len = sizeof(bytes) };
		struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
				      .msg_controllen = sizeof(control) };

		if (dmt_recvmsg(receiver, to, &msg, MSG_SOCK_DEVMEM) <= 0)
			break;
	}
	REASON("dmt_recvmsg: EAGAIN: no data: 1");
	REASON(" of 16 net_iovs of the binding with id ");
	REASON("are lent to the program; return their frags (SO_DEVMEM_DONTNEED), or bind more memory");
	WORKS(dmt_stack_close(receiver));
	WORKS(dmt_stack_close(sender));
	WORKS(dmt_memory_free(memory));
}

/* The reason names the call that failed. */
static void every_call_of_no_stack(void)
{
	char name[64];

	for (size_t i = 0; i < COUNT(stack_calls); i++) {
		expect(&stack_calls[i], NULL, 0, EBADF);
		snprintf(name, sizeof(name), "dmt_%s: EBADF: the stack is NULL", stack_calls[i].name);
		REASON(name);
	}
	for (size_t i = 0; i < COUNT(file_calls); i++) {
		expect(&file_calls[i], NULL, 0, EBADF);
		REASON(": EBADF: the stack is NULL");
	}
}

int main(int argc, char **argv)
{
	dmt_stack *stack;
	char text[8] = "";

	if (dmt_version() != DMT_VERSION)
		wrong++, puts("header and library have different versions");
	if (dmt_error(text, sizeof(text)) != 0 || text[0])
		wrong++, puts("a reason before any failure");
	if (argc > 1 && !strcmp(argv[1], "tap")) {
		without_privileges();
	} else {
		stack = dmt_open("mem:reasons", "address=10.77.0.1/24");
		NULL_IS(0, !stack);
		opening();
		binding(stack);
		kernel_memory();
		gpu_memory();
		kernel_nics();
		later_failures(stack);
	kept_frags();
		every_call_of_no_stack();
		WORKS(dmt_stack_close(stack));
	}
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
