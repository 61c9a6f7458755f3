/* devmem_tcp.h: device memory TCP for C programs, over a TCP/IP stack in this process.
 *
 * A stack has a NIC on a link, addresses, and sockets. The descriptors of a stack are numbers from 2^24 on. They are not
 * file descriptors of the process: read(2) and poll(2) do not know them, and another stack returns EBADF for them. dmt_epoll_fd
 * returns a file descriptor of the process to wait on.
 *
 * Calls with the name of a libc function do the same as that function, with Linux's constants, structures, control
 * messages and errnos, on a descriptor of the stack in the first argument. The differences: every send behaves as with
 * MSG_NOSIGNAL, so EPIPE comes without SIGPIPE (a library should not raise signals in its program); no call is interrupted
 * (EINTR); an unsupported option is ENOPROTOOPT. As in Linux, a blocked call goes on when another thread closes its
 * descriptor; it ends when the socket is shut down or the stack is closed (EBADF). recvmsg with MSG_SOCK_DEVMEM,
 * SO_DEVMEM_DONTNEED, and sendmsg with a SCM_DEVMEM_DMABUF control message work as in Linux's
 * Documentation/networking/devmem.rst.
 *
 * Errors: functions that return int or ssize_t return -1 and set errno when they fail; functions that return a handle
 * return NULL. A null pointer where memory is needed is EFAULT, a length larger than any object is EINVAL; any other pointer
 * must be valid, as for libc. EIO reports that a GPU failed (dmt_error names its call), or a bug of this library, which prints a
 * message about it.
 *
 * Threads: every function may be called from any thread, also several at the same time on one socket. A blocked call does
 * not block other calls. dmt_close frees the descriptor at once, and closes the file when the last blocked call on it has
 * returned, as Linux does; dmt_shutdown ends such calls, dmt_stack_close ends them with EBADF. Each stack has one background
 * thread.
 *
 * Handles: stacks and memories are named by handles, which are never reused. A handle that is closed or was never valid is
 * EBADF.
 *
 * fork(2): stacks and memories belong to the process that created them. In a child, every call with a handle of the parent
 * fails at once with EOWNERDEAD and changes nothing: the background thread of the stack does not exist in the child, and
 * locks may be held by threads that do not exist there either. (A handle that the parent closed before the fork is EOWNERDEAD
 * in the child, too.) Nothing that the child does, including its exit, affects the parent, which may fork while other threads
 * are in calls. The child may open other stacks and create other memories. All descriptors are close-on-exec. A child that
 * does not call exec(2) keeps its copies until it exits; until then a TAP of the parent stays open, even if the parent closes
 * its stack.
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

/* Version of this header. The library accepts programs that were built with an older header of the same major version. */
#define DMT_VERSION_MAJOR 0
#define DMT_VERSION_MINOR 1
#define DMT_VERSION_PATCH 0
#define DMT_VERSION (DMT_VERSION_MAJOR * 1000000 + DMT_VERSION_MINOR * 1000 + DMT_VERSION_PATCH)

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
	uint32_t frag_token;  /* return it with SO_DEVMEM_DONTNEED */
	uint32_t dmabuf_id;   /* id from dmt_bind_rx */
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
typedef struct dmt_nic dmt_nic;

/* Returns the version of the library that the program runs with, to compare with DMT_VERSION, that of its header. */
int dmt_version(void);

/* Opens a stack on LINK: "tap:NAME"; "packet:NAME" or "macvtap:NAME", on the Ethernet interface NAME; "unix-listen:PATH" and
 * "unix:PATH", the two ends of a wire between two processes; or "mem:NAME", an in-memory wire to the next stack that is opened with
 * the same name. With ",share=send" after PATH the other process can read all bytes that are passed to a send while it is connected,
 * also those that are never sent, which saves a copy.
 * SETTINGS is a list of name=value, separated by commas: address=10.0.0.2/24 (required, may be repeated; "auto" on packet and macvtap
 * links: one that a DHCP server lends, until the stack is closed, and one in a prefix that a router advertises),
 * peer=10.0.0.1/24 (address of the kernel's end of a TAP), gateway=IP, mtu=BYTES (576 to 65535), rx_queues=N, congestion=NAME
 * (cubic, the default, reno, bbr or dctcp: of sockets that do not set TCP_CONGESTION; dctcp, RFC 8257, has to be set before the handshake).
 *
 * Returns NULL on failure: EFAULT (LINK is NULL), EINVAL (invalid LINK or SETTINGS), EBUSY (another process uses the TAP, or
 * two stacks use the wire), ENOMEM, or the system's error for the TAP: EPERM without CAP_NET_ADMIN, EACCES if the user may not
 * open /dev/net/tun. dmt_error has the reason and what to do. */
dmt_stack *dmt_open(const char *link, const char *settings);

/* Opens a NIC with COUNT shards, 1 to 64, on LINK with SETTINGS as for dmt_open: COUNT stacks, which STACKS gets. Each has a queue
 * of the link, a lock and a background thread, so that threads on different stacks do not wait for each other. A hash of
 * its addresses and ports selects the stack of a connection. dmt_connect chooses a local port whose connection is on its stack. A
 * stack accepts the connections that are on it: listen at the same address on every stack. Each stack is closed by itself.
 *
 * Errors: those of dmt_open; EINVAL (COUNT, or LINK has one queue), EFAULT (STACKS is NULL). */
int dmt_open_shards(const char *link, const char *settings, dmt_stack **stacks, size_t count);

/* Closes every socket of a stack, waits at most two seconds for their connections to close, and closes the stack. Blocked
 * calls on the stack end with EBADF. Frags that were not returned are freed with their sockets. */
int dmt_stack_close(dmt_stack *stack);

/* Copies the name of this thread's last failed call, its errno, the reason and what to do, as text, to BUF, truncated to LEN
 * bytes including the terminating NUL. Returns the full length without the NUL; 0 if no call has failed. As errno, the text is
 * only meaningful after a failure: a call that succeeds does not clear it. */
ssize_t dmt_error(char *buf, size_t len);

/* dmt_memory_new allocates BYTES of device memory, a positive multiple of 4096; ENOMEM for other sizes and if memory is short.
 *
 * The other three make a memory of a dma-buf of the kernel: dmt_memory_udmabuf through /dev/udmabuf, dmt_memory_heap from the
 * dma-heap HEAP ("system" is the common one), dmt_memory_import of FD, which another driver or a GPU library exported. BYTES are
 * rounded up to whole pages. The caller keeps FD and may close it. The exporter must allow mapping for the CPU, because a NIC in
 * user space writes with the CPU. Errors: the kernel's, such as ENOENT and EACCES for the device file; EBADF and EINVAL (FD is
 * not a descriptor, or not a dma-buf).
 *
 * The program accesses a memory only with dmt_memory_read and dmt_memory_write, as it would access a GPU's memory: LEN bytes at
 * byte OFFSET; EFAULT if they are not inside the memory. dmt_memory_size returns the size in bytes. dmt_memory_free frees the
 * handle; bindings and lent frags keep the memory itself until they end. */
dmt_memory *dmt_memory_new(size_t bytes);
dmt_memory *dmt_memory_udmabuf(size_t bytes);
dmt_memory *dmt_memory_heap(const char *heap, size_t bytes);
dmt_memory *dmt_memory_import(int fd);
ssize_t dmt_memory_size(dmt_memory *memory);
int dmt_memory_free(dmt_memory *memory);
int dmt_memory_read(dmt_memory *memory, size_t offset, void *buf, size_t len);
int dmt_memory_write(dmt_memory *memory, size_t offset, const void *buf, size_t len);

/* Memory of a GPU: BYTES, rounded up to whole pages, of the device with the number DEVICE; the first one is 0. dmt_memory_cuda
 * needs NVIDIA's driver (CUDA 12.0 or newer), dmt_memory_hip AMD's library (ROCm 6.0 or newer), dmt_memory_vulkan the Vulkan
 * loader with a driver of any vendor. The library of the GPU is loaded by the first call. Memory that the CPU cannot access is
 * filled by the GPU, from host memory of the stack, before dmt_recvmsg returns its frags; sends take the opposite way. An
 * interface of the kernel needs a driver that exports the memory as a dma-buf; memory of AMD and Intel GPUs is refused there.
 *
 * dmt_memory_device_ptr writes the address of the first byte on the device, for kernels and copies of CUDA or HIP, to ADDRESS.
 * A frag is at that address plus its frag_offset. What the GPU writes must be complete before it is sent. EOPNOTSUPP: memory of
 * another kind.
 *
 * dmt_memory_fd returns a new file descriptor of the memory, for other libraries that import a dma-buf. The caller closes it.
 * EINVAL: memory of dmt_memory_new, which has none. EOPNOTSUPP: the driver of the GPU does not export it.
 *
 * Errors: ENODEV (there is no such driver or device), ENOMEM (the device has less free memory), EINVAL (BYTES is 0, or DEVICE is
 * negative), EOWNERDEAD (the parent of this process has used such memory before fork(2)), EIO (another call of the driver failed),
 * EOPNOTSUPP (dmt_memory_vulkan: the library was built without Vulkan). */
dmt_memory *dmt_memory_cuda(int device, size_t bytes);
dmt_memory *dmt_memory_hip(int device, size_t bytes);
dmt_memory *dmt_memory_vulkan(int device, size_t bytes);
int dmt_memory_device_ptr(dmt_memory *memory, uint64_t *address);
int dmt_memory_fd(dmt_memory *memory);

/* Binds MEMORY for receiving: from now on, payload that arrives on STACK lands in MEMORY, in net_iovs of 64 KiB. The size of
 * MEMORY must be a multiple of that. Turns header split on. Writes the id of the binding, which is in the control messages
 * of its frags, to ID.
 *
 * MEMORY has at most one receive binding at a time, over all stacks of this process. It can be bound again as soon as the
 * earlier binding has ended (dmt_unbind, dmt_stack_close) and its last frag was returned (SO_DEVMEM_DONTNEED) or freed with
 * its socket.
 *
 * EINVAL (not a multiple of 65536 bytes), EEXIST (a queue is bound already), EBUSY (MEMORY is bound already, or some of it
 * is still lent from an earlier binding), ENOMEM (too little for every queue). */
int dmt_bind_rx(dmt_stack *stack, dmt_memory *memory, uint32_t *id);

/* Binds MEMORY for sending. Writes the id of the binding to ID. To send ranges of MEMORY, call sendmsg with MSG_ZEROCOPY on a
 * socket with SO_ZEROCOPY, with a SCM_DEVMEM_DMABUF control message that contains the id (a uint32_t), and with offsets as
 * iov_base. The bytes must not change until the error queue reports that the send is complete (recvmsg with MSG_ERRQUEUE:
 * struct sock_extended_err, origin SO_EE_ORIGIN_ZEROCOPY, sends ee_info to ee_data; the zero-copy sends of a socket are
 * numbered from 0). See examples/send.c. */
int dmt_bind_tx(dmt_stack *stack, dmt_memory *memory, uint32_t *id);
/* Ends a binding of either kind: new payload lands in host memory again; sends under way still complete. EINVAL: there is no
 * binding with this id. */
int dmt_unbind(dmt_stack *stack, uint32_t id);

/* Writes the counters to STATS, at most SIZE bytes: pass sizeof(struct dmt_stats), so that programs built with an older or
 * newer header work. */
int dmt_get_stats(dmt_stack *stack, struct dmt_stats *stats, size_t size);

/* Device memory on INTERFACE, an interface of the kernel with a NIC that supports it. The sockets are those of libc, without the
 * prefix dmt_: recvmsg with MSG_SOCK_DEVMEM, SO_DEVMEM_DONTNEED and sendmsg with SCM_DEVMEM_DMABUF are the kernel's.
 *
 * SETTINGS is a list of name=value, separated by commas: receive=10.77.0.2:5201 sets the NIC up to receive TCP for that local
 * address and port into device memory (header split, RSS, flow rules) on queues=N (1) queues. Without it, the interface can only
 * be bound for sending. configured=yes writes nothing to the interface, as in a pod: its agent (`devmem-tcp lease`) has set it up, and
 * receive= then finds the agent's queues and checks what can be seen. broker=PATH is for a program without privileges: as
 * configured=yes, and dmt_nic_bind_rx has the broker bind that listens at PATH (`devmem-tcp broker`), for which it waits at most 80
 * seconds. A path has no comma. niov=BYTES is the size of a net_iov, a power of two from 4096
 * to 2097152; other sizes than a page need Linux 7.3, a driver that has them, and memory in pieces of that size, as of huge pages. dmt_nic_close ends the bindings and restores the previous settings; `devmem-tcp restore` does so after a
 * crash. The memory must be a dma-buf: dmt_memory_udmabuf, dmt_memory_heap, dmt_memory_import, or memory of a GPU that its driver
 * exports. dmt_nic_bind_rx and dmt_nic_bind_tx write the id of the binding to ID, dmt_nic_unbind ends it.
 *
 * Errors: the kernel's; EINVAL (invalid SETTINGS, memory that is not a dma-buf, no receive= for dmt_nic_bind_rx, no such
 * binding), EBUSY (MEMORY is bound for receiving already). dmt_error has the reason and what to do. */
dmt_nic *dmt_nic_open(const char *interface, const char *settings);
int dmt_nic_close(dmt_nic *nic);
int dmt_nic_bind_rx(dmt_nic *nic, dmt_memory *memory, uint32_t *id);
int dmt_nic_bind_tx(dmt_nic *nic, dmt_memory *memory, uint32_t *id);
int dmt_nic_unbind(dmt_nic *nic, uint32_t id);

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
/* Returns 0; for SO_DEVMEM_DONTNEED, the number of frags freed. */
int dmt_setsockopt(dmt_stack *stack, int fd, int level, int name, const void *value, socklen_t len);
/* Supports F_GETFL, F_SETFL, F_GETFD, F_SETFD. */
int dmt_fcntl(dmt_stack *stack, int fd, int command, int argument);
/* Supports FIONBIO, SIOCINQ (FIONREAD), SIOCOUTQ, SIOCOUTQNSD. */
int dmt_ioctl(dmt_stack *stack, int fd, unsigned long request, int *argument);
int dmt_poll(dmt_stack *stack, struct pollfd *fds, nfds_t count, int timeout_ms);
int dmt_epoll_create1(dmt_stack *stack, int flags);
/* Returns a file descriptor of the process that is readable (POLLIN, EPOLLIN) while dmt_epoll_wait on EPFD would return events:
 * for poll(2), epoll(7) or the event loop of a library. Wait on it level-triggered, then call dmt_epoll_wait with a timeout of 0
 * until it returns 0. Do not read from it or write to it. The caller closes it with close(2); when EPFD or STACK is closed, it
 * becomes readable and stays so. Not valid in a child of fork(2). EINVAL: EPFD is not an epoll; EMFILE. */
int dmt_epoll_fd(dmt_stack *stack, int epfd);
int dmt_epoll_ctl(dmt_stack *stack, int epfd, int operation, int fd, struct epoll_event *event);
int dmt_epoll_wait(dmt_stack *stack, int epfd, struct epoll_event *events, int most, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
