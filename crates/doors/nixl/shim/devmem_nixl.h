/* The C interface between the C++ part of the plugin and the rest of it. Not installed.
 *
 * A status is a number of NIXL (nixl_status_t): 0 done, 1 going on, negative an error, of which one line is on standard error. Texts, lists
 * and ranges are read during the call only. Every function may be called by any thread. */
#ifndef DEVMEM_NIXL_H
#define DEVMEM_NIXL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct devmem_nixl_engine devmem_nixl_engine;
typedef struct devmem_nixl_transfer devmem_nixl_transfer;

/* Bytes of any content; null if there are none. */
typedef struct {
    const char *bytes;
    size_t len;
} devmem_nixl_text;

typedef struct {
    devmem_nixl_text key;
    devmem_nixl_text value;
} devmem_nixl_parameter_pair;

/* A range of memory: its address in the process that it belongs to, and the number of a region, registered here or loaded. */
typedef struct {
    uint64_t address;
    uint64_t len;
    uint64_t region;
} devmem_nixl_range;

/* Takes a result, which is valid during the call. It must not throw. */
typedef void (*devmem_nixl_put)(void *to, devmem_nixl_text text);
/* Takes a notification and the name of its sender. It must not throw. */
typedef void (*devmem_nixl_notice)(void *to, devmem_nixl_text from, devmem_nixl_text message);

/* Checks that the plugins of the NIXL whose library has this path have a table of virtual functions of that size. */
int devmem_nixl_check_abi(devmem_nixl_text libnixl, size_t table_bytes);
/* Makes an engine. With a thread, it makes progress while no call does. */
int devmem_nixl_open(devmem_nixl_text agent, const devmem_nixl_parameter_pair *parameters, size_t count, int has_thread,
                     devmem_nixl_engine **out);
/* Ends an engine; waits up to a second until peers were told what they must be told. Transfers are released before. */
void devmem_nixl_close(devmem_nixl_engine *engine);
/* Returns 0 and the parameter of that index with its default, or 1. What it leads to lives as long as the library. */
int devmem_nixl_parameter(size_t index, devmem_nixl_parameter_pair *out);
/* Gives a line of JSON for each engine of the process: the way, and what was moved and copied. */
int devmem_nixl_paths(devmem_nixl_put put, void *to);

/* Returns 1 if a driver of this machine has a GPU, whose memory can be registered. */
int devmem_nixl_has_gpu(void);
/* Returns 1 if the engine takes memory of the host, which it does not if no CPU may copy payload. */
int devmem_nixl_takes_host(const devmem_nixl_engine *engine);
/* Registers memory, which stays valid until it is deregistered. If transfers are going on then, that is NIXL_ERR_NOT_ALLOWED, and they fail:
 * in either case nothing touches the memory any more. */
int devmem_nixl_register(const devmem_nixl_engine *engine, uint64_t address, uint64_t len, uint64_t *region);
/* As devmem_nixl_register, of memory of a GPU: the number of the device counts if no driver knows the address. */
int devmem_nixl_register_gpu(const devmem_nixl_engine *engine, uint64_t address, uint64_t len, uint64_t device, uint64_t *region);
int devmem_nixl_deregister(const devmem_nixl_engine *engine, uint64_t region);
/* Gives what peers must know of a region, and of this agent. */
int devmem_nixl_describe(const devmem_nixl_engine *engine, uint64_t region, devmem_nixl_put put, void *to);
int devmem_nixl_info(const devmem_nixl_engine *engine, devmem_nixl_put put, void *to);

/* Takes what a peer's functions of this kind have given. A region of this agent becomes the far side of transfers to itself. */
int devmem_nixl_load_agent(const devmem_nixl_engine *engine, devmem_nixl_text name, devmem_nixl_text info);
int devmem_nixl_load_region(const devmem_nixl_engine *engine, devmem_nixl_text peer, devmem_nixl_text data, uint64_t *region);
int devmem_nixl_load_own(const devmem_nixl_engine *engine, uint64_t region, uint64_t *remote);
int devmem_nixl_unload_region(const devmem_nixl_engine *engine, uint64_t region);
/* Begins to connect, and does not wait. Transfers and notifications do so, too. */
int devmem_nixl_connect(const devmem_nixl_engine *engine, devmem_nixl_text peer);
/* Ends the connections to a peer, and forgets it. */
int devmem_nixl_disconnect(const devmem_nixl_engine *engine, devmem_nixl_text peer);

/* Checks the ranges of a transfer: `count` of each side, equally long in pairs. */
int devmem_nixl_prepare(const devmem_nixl_engine *engine, int is_write, devmem_nixl_text peer, const devmem_nixl_range *locals,
                        const devmem_nixl_range *remotes, size_t count, devmem_nixl_transfer **out);
/* Begins a transfer, again if it is done. The peer gets the notification, if there is one, when all bytes are in place. */
int devmem_nixl_post(const devmem_nixl_engine *engine, const devmem_nixl_transfer *transfer, const devmem_nixl_text *notification);
/* Makes progress, and returns how far a transfer is. */
int devmem_nixl_check(const devmem_nixl_engine *engine, const devmem_nixl_transfer *transfer);
/* Ends a transfer, which is cancelled if it goes on, and forgets it. */
int devmem_nixl_release(const devmem_nixl_engine *engine, devmem_nixl_transfer *transfer);

int devmem_nixl_notify(const devmem_nixl_engine *engine, devmem_nixl_text peer, devmem_nixl_text message);
/* Makes progress, and gives the notifications that have come, in order. */
int devmem_nixl_notifications(const devmem_nixl_engine *engine, devmem_nixl_notice notice, void *to);

#ifdef __cplusplus
}
#endif
#endif
