/* fork(2) while other threads are in calls: the child cannot use its parent's stacks, can open other stacks, and exits
 * normally; the parent receives every byte. Prints failed checks.
 *
 * With an argument, this is the program that a child executes: it prints the descriptors that it inherited.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "every_call.h"

#define FORKS 40
#define MEMORY (4 << 20)

static unsigned char byte_at(size_t position)
{
	return (unsigned char)(position % 251 ^ position >> 16);
}

/* Two stacks on one wire and a connection between them, which receives into device memory. */
struct world {
	dmt_stack *sender, *receiver;
	dmt_memory *memory;
	uint32_t binding;
	int listener, to, from;
	volatile int stop;
	size_t sent, received;
};

static int open_world(struct world *world, const char *link)
{
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_port = htons(5201) };

	memset(world, 0, sizeof(*world));
	inet_pton(AF_INET, "10.77.0.2", &local.sin_addr);
	world->sender = dmt_open(link, "address=10.77.0.1/24");
	world->receiver = dmt_open(link, "address=10.77.0.2/24");
	world->memory = dmt_memory_new(MEMORY);
	if (!world->sender || !world->receiver || !world->memory)
		return -1;
	if (dmt_bind_rx(world->receiver, world->memory, &world->binding))
		return -1;
	world->listener = dmt_socket(world->receiver, AF_INET, SOCK_STREAM, 0);
	world->to = dmt_socket(world->sender, AF_INET, SOCK_STREAM, 0);
	if (dmt_bind(world->receiver, world->listener, (struct sockaddr *)&local, sizeof(local)) ||
	    dmt_listen(world->receiver, world->listener, 1) ||
	    dmt_connect(world->sender, world->to, (struct sockaddr *)&local, sizeof(local)))
		return -1;
	world->from = dmt_accept(world->receiver, world->listener, NULL, NULL);
	return world->from;
}

static void close_world(struct world *world)
{
	/* Both ends, so that neither stack waits for a FIN. */
	WORKS(dmt_close(world->sender, world->to));
	WORKS(dmt_close(world->receiver, world->from));
	WORKS(dmt_stack_close(world->sender));
	WORKS(dmt_stack_close(world->receiver));
	WORKS(dmt_memory_free(world->memory));
}

/* Sends until it is told to stop. */
static void *send_all(void *argument)
{
	struct world *world = argument;
	unsigned char bytes[40000];

	while (!world->stop) {
		ssize_t n;

		for (size_t at = 0; at < sizeof(bytes); at++)
			bytes[at] = byte_at(world->sent + at);
		n = dmt_send(world->sender, world->to, bytes, sizeof(bytes), 0);
		WORKS(n);
		if (n < 0)
			break;
		world->sent += (size_t)n;
	}
	WORKS(dmt_shutdown(world->sender, world->to, SHUT_WR));
	return NULL;
}

static void verify(struct world *world, const unsigned char *bytes, size_t len)
{
	for (size_t at = 0; at < len; at++) {
		if (bytes[at] != byte_at(world->received + at)) {
			printf("byte %zu is wrong\n", world->received + at);
			wrong++;
			break;
		}
	}
	world->received += len;
}

/* Receives to the end of the stream, and verifies the bytes in device memory. */
static void *receive_all(void *argument)
{
	struct world *world = argument;
	static unsigned char linear[65536], seen[1 << 20];
	char control[64 * CMSG_SPACE(sizeof(struct dmt_dmabuf_cmsg))];
	ssize_t n;

	do {
		struct iovec iov = { .iov_base = linear, .iov_len = sizeof(linear) };
		struct msghdr msg = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control),
		};
		size_t host = 0;

		n = dmt_recvmsg(world->receiver, world->from, &msg, MSG_SOCK_DEVMEM);
		WORKS(n);
		for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
			struct dmt_dmabuf_cmsg frag;
			struct dmt_dmabuf_token token;

			memcpy(&frag, CMSG_DATA(cmsg), sizeof(frag));
			if (cmsg->cmsg_type == SCM_DEVMEM_LINEAR) {
				verify(world, linear + host, frag.frag_size);
				host += frag.frag_size;
				continue;
			}
			WORKS(dmt_memory_read(world->memory, frag.frag_offset, seen, frag.frag_size));
			verify(world, seen, frag.frag_size);
			token.token_start = frag.frag_token;
			token.token_count = 1;
			if (dmt_setsockopt(world->receiver, world->from, SOL_SOCKET, SO_DEVMEM_DONTNEED, &token,
					   sizeof(token)) != 1)
				wrong++, puts("a frag could not be returned");
		}
	} while (n > 0);
	return NULL;
}

/* A transfer between two stacks of this process, parent or child. */
static void transfer(const char *link)
{
	struct world world;
	pthread_t receiver;

	if (open_world(&world, link) < 0) {
		printf("two stacks on %s: %s\n", link, strerror(errno));
		wrong++;
		return;
	}
	pthread_create(&receiver, NULL, receive_all, &world);
	for (int i = 0; i < 20; i++) {
		unsigned char bytes[10000];

		for (size_t at = 0; at < sizeof(bytes); at++)
			bytes[at] = byte_at(world.sent + at);
		WORKS(dmt_send(world.sender, world.to, bytes, sizeof(bytes), 0));
		world.sent += sizeof(bytes);
	}
	WORKS(dmt_shutdown(world.sender, world.to, SHUT_WR));
	pthread_join(receiver, NULL);
	if (world.received != world.sent)
		wrong++, printf("%zu of %zu bytes arrived on %s\n", world.received, world.sent, link);
	close_world(&world);
}

/* Calls each function of the header with stacks, files and memories of the parent. */
static void every_call_is_refused(struct world *theirs)
{
	dmt_stack *stacks[] = { theirs->sender, theirs->receiver };
	int files[] = { theirs->to, theirs->from, theirs->listener, some_epoll, -1 };
	uint64_t address;

	for (size_t s = 0; s < COUNT(stacks); s++) {
		for (size_t i = 0; i < COUNT(stack_calls); i++)
			expect(&stack_calls[i], stacks[s], -1, EOWNERDEAD);
		for (size_t f = 0; f < COUNT(files); f++)
			for (size_t i = 0; i < COUNT(file_calls); i++)
				expect(&file_calls[i], stacks[s], files[f], EOWNERDEAD);
	}
	EXPECT(EOWNERDEAD, dmt_memory_read(theirs->memory, 0, some, 1));
	EXPECT(EOWNERDEAD, dmt_memory_write(theirs->memory, 0, some, 1));
	EXPECT(EOWNERDEAD, dmt_memory_size(theirs->memory));
	EXPECT(EOWNERDEAD, dmt_memory_device_ptr(theirs->memory, &address));
	EXPECT(EOWNERDEAD, dmt_memory_fd(theirs->memory));
	EXPECT(EOWNERDEAD, dmt_memory_free(theirs->memory));
	EXPECT(EBADF, dmt_socket(NULL, AF_INET, SOCK_STREAM, 0));
	EXPECT(EBADF, dmt_stack_close((dmt_stack *)(uintptr_t)99999));
	WORKS(dmt_error(some, sizeof(some)));
}

static void wait_for(pid_t child, const char *what)
{
	int status;

	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) {
		printf("%s: status %#x (signal %d: it did not end in time)\n", what, status, SIGALRM);
		wrong++;
	}
}

/* The checks in a child, which then returns from main, with destructors and exit handlers. */
static int in_child(struct world *theirs, int number)
{
	struct world ours;
	pid_t child;

	/* A call that does not return is killed. Failed checks of the parent are not counted here. */
	alarm(30);
	wrong = 0;
	every_call_is_refused(theirs);
	if (number % 4)
		return wrong != 0;
	/* The names of the parent's wires are free in the child. */
	transfer("mem:fork");
	every_call_is_refused(theirs);
	if (open_world(&ours, "mem:again") < 0)
		wrong++, puts("two more stacks could not be opened");
	/* A memory of the parent cannot be bound to a stack of the child. */
	EXPECT(EOWNERDEAD, dmt_bind_rx(ours.receiver, theirs->memory, &some_id));
	EXPECT(EBADF, dmt_send(ours.sender, theirs->to, "x", 1, 0));
	fflush(stdout);
	child = fork();
	if (child == 0) {
		alarm(30);
		wrong = 0;
		every_call_is_refused(theirs);
		every_call_is_refused(&ours);
		transfer("mem:again");
		fflush(stdout);
		_exit(wrong != 0);
	}
	wait_for(child, "a grandchild");
	close_world(&ours);
	if (number % 8 == 0) {
		fflush(stdout);
		if (wrong == 0)
			execl("/proc/self/exe", "fork", "descriptors", (char *)NULL);
	}
	return wrong != 0;
}

/* An executed program inherits standard input, output and error, and no descriptor of the library. */
static int list_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;

	while ((entry = readdir(folder)) != NULL) {
		int fd = atoi(entry->d_name);

		if (fd > 2 && fd != dirfd(folder))
			wrong++, printf("descriptor %d was inherited\n", fd);
	}
	return wrong != 0;
}

static int in_handler;

static void at_exit(void)
{
	in_handler++;
}

int main(int argc, char **argv)
{
	struct world world;
	pthread_t sender, receiver;

	(void)argv;
	if (argc > 1)
		return list_descriptors();
	atexit(at_exit);
	/* Descriptors that this program itself inherited are not checked in a child. */
	for (int fd = 3; fd < 1024; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	if (open_world(&world, "mem:fork") < 0)
		return puts("the stacks could not be opened"), 1;
	some_memory = world.memory;
	some_epoll = dmt_epoll_create1(world.receiver, 0);
	pthread_create(&sender, NULL, send_all, &world);
	pthread_create(&receiver, NULL, receive_all, &world);
	for (int i = 0; i < FORKS; i++) {
		size_t before = world.received;
		pid_t child;

		fflush(stdout);
		child = fork();
		if (child == 0)
			return in_child(&world, i);
		wait_for(child, "a child");
		/* The parent receives while the child runs, and afterwards. */
		while (*(volatile size_t *)&world.received == before)
			sched_yield();
	}
	world.stop = 1;
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	if (world.received != world.sent)
		wrong++, printf("%zu of %zu bytes arrived\n", world.received, world.sent);
	close_world(&world);
	transfer("mem:fork");
	printf("%d forks, %d wrong\n", FORKS, wrong);
	return wrong != 0;
}
