/* devmem_tcp.h: device memory TCP for C programs, over a TCP/IP stack in this process.
 *
 * A stack has a NIC on a link, addresses, and sockets. Its files are numbers of its own, from 2^24 on: they are no
 * file descriptors of the process and mean nothing to read(2) or poll(2), and those of one stack are EBADF in another.
 *
 * Calls named after libc's do what those do, with Linux's constants, structures, control messages and errnos, on a
 * socket of the stack given first. What differs: every send is as with MSG_NOSIGNAL, so that EPIPE comes without
 * SIGPIPE (a library has no business with the signals of its program); no call is interrupted (EINTR); and an option
 * that is not done is ENOPROTOOPT. A call that waits for a file goes on when another thread closes it, as in Linux:
 * shutdown ends it, and so does the end of the whole stack (EBADF). recvmsg with MSG_SOCK_DEVMEM, SO_DEVMEM_DONTNEED
 * and sendmsg with a SCM_DEVMEM_DMABUF control message are as in Linux's Documentation/networking/devmem.rst.
 *
 * Errors: functions that return int or ssize_t return -1 and set errno when they fail; those that return a handle
 * return NULL. A null pointer where memory is needed is EFAULT, a length that no object has EINVAL; any other pointer is
 * taken at its word, as by libc. EIO is a mistake of this library, which has printed it.
 *
 * Threads: every function may be called from any thread, several at once on the same socket. A call that waits waits
 * alone. dmt_close takes a file's number away at once, and the file when the last call that waits for it has returned,
 * as Linux does; dmt_shutdown ends such calls, dmt_stack_close ends them with EBADF. Each stack has one thread of its own.
 *
 * Handles: stacks and memories are named by handles, which are never used twice. One that was closed, or never was, is
 * EBADF.
 *
 * fork(2): stacks and memories belong to the process that made them. In a child every call with a handle of its parent's is
 * EOWNERDEAD, at once, and changes nothing: the thread that drives the stack is not in the child, and locks may be held by
 * other threads that are not. (A handle that the parent closed before the fork is EOWNERDEAD in the child, too.) The parent
 * goes on undisturbed, whatever the child does and however it ends; it may fork while other threads are in calls. A child
 * may open stacks and make memories of its own. All descriptors are close-on-exec; a child that does not execute a program
 * holds its copies until it ends, and until then a TAP of its parent's stays in being, also when the parent closed its
 * stack.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef DEVMEM_TCP_H
#define DEVMEM_TCP_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names of Linux's uAPI that older system headers lack. */
#ifndef MSG_SOCK_DEVMEM
#define MSG_SOCK_DEVMEM 0x2000000
#endif
#ifndef SO_DEVMEM_LINEAR
#define SO_DEVMEM_LINEAR 78
#define SCM_DEVMEM_LINEAR SO_DEVMEM_LINEAR
#define SO_DEVMEM_DMABUF 79
#define SCM_DEVMEM_DMABUF SO_DEVMEM_DMABUF
#define SO_DEVMEM_DONTNEED 80
#endif

/* struct dmabuf_cmsg and struct dmabuf_token of linux/uio.h, under names that cannot clash with it. */
struct dmt_dmabuf_cmsg {
	uint64_t frag_offset; /* byte offset in the memory */
	uint32_t frag_size;   /* bytes */
	uint32_t frag_token;  /* to be given back by SO_DEVMEM_DONTNEED */
	uint32_t dmabuf_id;   /* of dmt_bind_rx */
	uint32_t flags;       /* 0 */
};

struct dmt_dmabuf_token {
	uint32_t token_start;
	uint32_t token_count;
};

/* Counters of a stack. Fields are only ever added at the end. */
struct dmt_stats {
	uint64_t rx_packets;
	uint64_t tx_packets;
	uint64_t connects;
	uint64_t accepts;
	uint64_t sockets;
	uint64_t orphans;
	uint64_t connections;
	uint64_t drops;
};

typedef struct dmt_stack dmt_stack;
typedef struct dmt_memory dmt_memory;

/* Opens a stack on LINK: "tap:NAME", or "mem:NAME", a wire in this process whose other end is the next stack opened
 * with the same name. SETTINGS are name=value, joined by commas: address=10.0.0.2/24 (needed, may be repeated),
 * peer=10.0.0.1/24 (of a TAP's kernel end), gateway=IP, mtu=BYTES (576 to 65535), rx_queues=N.
 *
 * NULL: EFAULT (no link), EINVAL (what was said makes no sense; dmt_error has the reason), ENOMEM, or what the system
 * says of the TAP, such as EPERM without CAP_NET_ADMIN. */
dmt_stack *dmt_open(const char *link, const char *settings);

/* Closes every socket of a stack, lets connections say goodbye for two seconds at most, and ends it. Calls that wait in
 * it end with EBADF. Frags that were not given back are forgotten with their sockets. */
int dmt_stack_close(dmt_stack *stack);

/* Copies the reason of this thread's last failed dmt_open, dmt_memory_new, dmt_memory_read or dmt_memory_write to BUF, cut
 * to LEN bytes with the terminator, and returns the whole length without it. */
ssize_t dmt_error(char *buf, size_t len);

/* Device memory: BYTES of it, whole pages; ENOMEM for none and for more than there is. The program reaches it by
 * dmt_memory_read and dmt_memory_write only, as it would reach a GPU's: LEN bytes from byte OFFSET on, EFAULT if they do
 * not lie inside. Freeing it gives up the handle; bindings and frags that are lent keep the memory as long as they
 * live. */
dmt_memory *dmt_memory_new(size_t bytes);
int dmt_memory_free(dmt_memory *memory);
int dmt_memory_read(dmt_memory *memory, size_t offset, void *buf, size_t len);
int dmt_memory_write(dmt_memory *memory, size_t offset, const void *buf, size_t len);

/* Payload that arrives on STACK lands in MEMORY from now on, in net_iovs of 64 KiB, of which MEMORY must be a multiple;
 * header split is switched on for it. Writes the binding's id, which control messages name.
 *
 * MEMORY has one such binding at a time, on whatever stack of this process. It can be bound again when the earlier one was
 * given up (dmt_unbind, dmt_stack_close) and its last frag was given back (SO_DEVMEM_DONTNEED) or forgotten with its
 * socket, at once then.
 *
 * EINVAL (not a multiple of 65536 bytes), EEXIST (a queue is bound already), EBUSY (MEMORY is bound already, or some of it
 * is still lent from an earlier binding), ENOMEM (too little for every queue). */
int dmt_bind_rx(dmt_stack *stack, dmt_memory *memory, uint32_t *id);

/* Ranges of MEMORY may be sent: sendmsg with MSG_ZEROCOPY on a socket with SO_ZEROCOPY, a SCM_DEVMEM_DMABUF control
 * message with the id (a uint32_t), and offsets as iov_base. The bytes must not change until the error queue has told
 * that the send is complete (recvmsg with MSG_ERRQUEUE: struct sock_extended_err, origin SO_EE_ORIGIN_ZEROCOPY, sends from
 * ee_info to ee_data; the socket's zero-copy sends are numbered from 0). examples/send.c shows all of it. */
int dmt_bind_tx(dmt_stack *stack, dmt_memory *memory, uint32_t *id);
/* Gives a binding of either kind up: what arrives lands in host memory again, what was sent arrives. EINVAL: there is
 * none. */
int dmt_unbind(dmt_stack *stack, uint32_t id);

/* Writes the counters, at most SIZE bytes of them: sizeof(struct dmt_stats), whichever header it was. */
int dmt_get_stats(dmt_stack *stack, struct dmt_stats *stats, size_t size);

int dmt_socket(dmt_stack *stack, int domain, int type, int protocol);
int dmt_bind(dmt_stack *stack, int fd, const struct sockaddr *address, socklen_t len);
int dmt_listen(dmt_stack *stack, int fd, int backlog);
int dmt_accept(dmt_stack *stack, int fd, struct sockaddr *address, socklen_t *len);
int dmt_accept4(dmt_stack *stack, int fd, struct sockaddr *address, socklen_t *len, int flags);
int dmt_connect(dmt_stack *stack, int fd, const struct sockaddr *address, socklen_t len);
int dmt_getsockname(dmt_stack *stack, int fd, struct sockaddr *address, socklen_t *len);
int dmt_getpeername(dmt_stack *stack, int fd, struct sockaddr *address, socklen_t *len);
ssize_t dmt_read(dmt_stack *stack, int fd, void *buf, size_t len);
ssize_t dmt_readv(dmt_stack *stack, int fd, const struct iovec *iov, int count);
ssize_t dmt_recv(dmt_stack *stack, int fd, void *buf, size_t len, int flags);
ssize_t dmt_recvfrom(dmt_stack *stack, int fd, void *buf, size_t len, int flags, struct sockaddr *address,
		     socklen_t *address_len);
ssize_t dmt_recvmsg(dmt_stack *stack, int fd, struct msghdr *msg, int flags);
ssize_t dmt_write(dmt_stack *stack, int fd, const void *buf, size_t len);
ssize_t dmt_writev(dmt_stack *stack, int fd, const struct iovec *iov, int count);
ssize_t dmt_send(dmt_stack *stack, int fd, const void *buf, size_t len, int flags);
ssize_t dmt_sendto(dmt_stack *stack, int fd, const void *buf, size_t len, int flags, const struct sockaddr *to,
		   socklen_t to_len);
ssize_t dmt_sendmsg(dmt_stack *stack, int fd, const struct msghdr *msg, int flags);
int dmt_shutdown(dmt_stack *stack, int fd, int how);
int dmt_close(dmt_stack *stack, int fd);
int dmt_getsockopt(dmt_stack *stack, int fd, int level, int name, void *value, socklen_t *len);
/* Returns 0, but for SO_DEVMEM_DONTNEED: the number of frags freed. */
int dmt_setsockopt(dmt_stack *stack, int fd, int level, int name, const void *value, socklen_t len);
/* F_GETFL, F_SETFL, F_GETFD, F_SETFD. */
int dmt_fcntl(dmt_stack *stack, int fd, int command, int argument);
/* FIONBIO, SIOCINQ (FIONREAD), SIOCOUTQ, SIOCOUTQNSD. */
int dmt_ioctl(dmt_stack *stack, int fd, unsigned long request, int *argument);
int dmt_poll(dmt_stack *stack, struct pollfd *fds, nfds_t count, int timeout_ms);
int dmt_epoll_create1(dmt_stack *stack, int flags);
int dmt_epoll_ctl(dmt_stack *stack, int epfd, int operation, int fd, struct epoll_event *event);
int dmt_epoll_wait(dmt_stack *stack, int epfd, struct epoll_event *events, int most, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
