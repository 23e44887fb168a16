/* Virtual ggml devices: they look like GPUs, compute on the CPU, and keep a ledger of what moves.
 *
 * Plain C, no other header needed but these two; every function can be called from any thread, except
 * that pyggml_vdev_configure and pyggml_vdev_register must not run while ggml uses its device registry
 * (which has no lock of its own).
 *
 * Functions that return `const char *` as an error return NULL when all went well; the text stays valid
 * until the same thread calls another function of this header.
 */
#ifndef PYGGML_VDEV_H
#define PYGGML_VDEV_H

#include <stddef.h>
#include <stdint.h>

#ifndef PYGGML_VDEV_API
#define PYGGML_VDEV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_backend_device;
struct ggml_backend_reg;

enum { PYGGML_VDEV_MAX_DEVICES = 16 };

/* What the devices are like. Start from pyggml_vdev_config_default. */
struct pyggml_vdev_config {
    const char * names;         /* comma separated, one for every device; NULL: VDEV0, VDEV1, ... */
    uint64_t     memory;        /* bytes of each device, enforced */
    uint64_t     alignment;     /* bytes, a power of two; buffers are aligned to it and to no more */
    uint64_t     max_buffer;    /* bytes of the largest buffer, enforced; 0: no limit of its own */
    uint32_t     devices;       /* 1 to 16 */
    uint32_t     threads;       /* per device; results do not depend on it */
    uint32_t     offload_batch; /* take over operations whose weights are on the host from this batch; 0: never */
    uint32_t     native_2d;     /* strided transfers in one call; without, ggml makes a call per row */
    uint32_t     host_buffer;   /* offer a pinned host buffer type */
    uint32_t     async;         /* offer asynchronous transfers and events */
    uint32_t     poison;        /* fill fresh buffers with 0xFF (NaN); otherwise with zeros */
    uint32_t     strict;        /* fail a graph that reads or writes memory outside its device */
    const char * schedule;      /* when asynchronous work runs: at-once, late, random:SEED or threads, each with
                                   options such as late/copies=both/host=pageable; NULL: at-once */
    const char * traits;        /* in what devices differ: DEVICE:KEY=VALUE,...;..., DEVICE a number from 0 or * for
                                   all; NULL: in nothing. The keys: memory, in-use (bytes that something else
                                   holds), alignment, max-buffer, pad (elements to which the last row of a
                                   quantised tensor is padded), 2d, async, events (on or off), refuse (operations
                                   that are not supported, OP, OP/TYPE or /TYPE, with a plus between them) */
};

enum pyggml_vdev_kind {
    PYGGML_VDEV_ALLOC   = 0,
    PYGGML_VDEV_FREE    = 1,
    PYGGML_VDEV_SET     = 2, /* host to device */
    PYGGML_VDEV_GET     = 3, /* device to host */
    PYGGML_VDEV_SET_2D  = 4,
    PYGGML_VDEV_GET_2D  = 5,
    PYGGML_VDEV_CPY     = 6, /* device to device, also within one */
    PYGGML_VDEV_MEMSET  = 7,
    PYGGML_VDEV_CLEAR   = 8, /* a whole buffer */
    PYGGML_VDEV_COMPUTE = 9
};

enum pyggml_vdev_flag {
    PYGGML_VDEV_ASYNC   = 1, /* came through the backend's asynchronous function */
    PYGGML_VDEV_REFUSED = 2, /* not done: no memory, copy refused, graph failed */
    PYGGML_VDEV_FLIPPED = 4  /* an injected fault changed one byte */
};

/* One line of the ledger.
 *
 * split: how many graphs this device had computed before (since the ledger was cleared). So a split's
 * inputs carry the number that its compute carries, and what is read back from it carries the next.
 */
struct pyggml_vdev_record {
    uint64_t sequence;   /* order over all devices, from 0 */
    uint64_t bytes;      /* payload: rows * bytes of a row; 0 for a compute */
    uint64_t rows;       /* 1; rows of a 2-D transfer; nodes of a compute */
    uint64_t offset;     /* in the tensor */
    uint64_t stride;     /* from row to row in the tensor, for a 2-D transfer; otherwise 0 */
    int32_t  kind;       /* enum pyggml_vdev_kind */
    int32_t  device;     /* index; for a copy, of the destination */
    int32_t  peer;       /* index of a copy's source; otherwise -1 */
    uint32_t split;
    uint32_t flags;      /* enum pyggml_vdev_flag */
    uint32_t reserved;   /* 0 */
    char     tensor[64]; /* name of the tensor (a copy's destination, a graph's last node); NUL terminated */
};

enum pyggml_vdev_fault_kind {
    PYGGML_VDEV_FAULT_ALLOC   = 0, /* the allocation returns NULL */
    PYGGML_VDEV_FAULT_COPY    = 1, /* the device to device copy is refused */
    PYGGML_VDEV_FAULT_COMPUTE = 2, /* the graph is not computed: GGML_STATUS_FAILED */
    PYGGML_VDEV_FAULT_SET     = 3, /* one byte flips on its way to the device */
    PYGGML_VDEV_FAULT_GET     = 4  /* one byte flips on its way to the host */
};

/* Something that goes wrong on demand. All conditions must hold. */
struct pyggml_vdev_fault {
    uint64_t nth;        /* the n-th event that meets the conditions, from 1; 0: every one */
    uint64_t min_bytes;  /* events of at least that size (allocations and transfers) */
    uint64_t byte;       /* set and get: which byte of the payload flips, modulo its size */
    int32_t  kind;       /* enum pyggml_vdev_fault_kind */
    int32_t  device;     /* index (of a copy: the destination); -1: any */
    uint32_t mask;       /* set and get: bits that flip, 1 to 255 */
    uint32_t reserved;   /* 0 */
    char     tensor[64]; /* glob on the tensor's name (compute: on any node's); empty: any */
};

/* Configuration. Devices handed out earlier stay valid for ever, but are no longer registered. */
PYGGML_VDEV_API void         pyggml_vdev_config_default(struct pyggml_vdev_config * config);
PYGGML_VDEV_API const char * pyggml_vdev_configure(const struct pyggml_vdev_config * config);
PYGGML_VDEV_API const char * pyggml_vdev_configure_from_environment(void);
/* Put the devices into ggml's registry, or take them out of it; harmless when that is so already. */
PYGGML_VDEV_API const char * pyggml_vdev_register(void);
PYGGML_VDEV_API void         pyggml_vdev_unregister(void);
PYGGML_VDEV_API uint32_t     pyggml_vdev_count(void);
PYGGML_VDEV_API struct ggml_backend_device * pyggml_vdev_device(uint32_t index); /* NULL: no such device */
PYGGML_VDEV_API struct ggml_backend_reg *    pyggml_vdev_reg(void);
PYGGML_VDEV_API uint64_t     pyggml_vdev_memory_used(uint32_t index);

/* The ledger in memory; off at first. Clearing also restarts sequence and split numbers. */
PYGGML_VDEV_API void     pyggml_vdev_ledger_enable(int on);
PYGGML_VDEV_API int      pyggml_vdev_ledger_enabled(void);
PYGGML_VDEV_API void     pyggml_vdev_ledger_clear(void);
PYGGML_VDEV_API uint64_t pyggml_vdev_ledger_count(void);
PYGGML_VDEV_API uint64_t pyggml_vdev_ledger_dropped(void); /* records that did not fit into memory */
/* Copy up to `capacity` records from number `first` on; returns how many. */
PYGGML_VDEV_API uint64_t pyggml_vdev_ledger_read(struct pyggml_vdev_record * out, uint64_t first, uint64_t capacity);
PYGGML_VDEV_API size_t   pyggml_vdev_record_size(void);

/* Faults. Adding returns an error; the fault's number for _hits is its order of adding, from 0. */
PYGGML_VDEV_API const char * pyggml_vdev_fault_add(const struct pyggml_vdev_fault * fault);
PYGGML_VDEV_API const char * pyggml_vdev_fault_parse(const char * text); /* as PYGGML_VDEV_FAULT */
PYGGML_VDEV_API void         pyggml_vdev_fault_clear(void);
PYGGML_VDEV_API uint64_t     pyggml_vdev_fault_hits(uint32_t number); /* how often it struck */

/* Races: accesses to the same bytes, at least one a write, that nothing orders. Off at first; found in any schedule.
 * Enabling or disabling forgets all of them. A race is a line of JSON; of races between the same operations on the same
 * tensors only the first is kept. NULL: there is no race of that number. */
PYGGML_VDEV_API void         pyggml_vdev_races_enable(int on);
PYGGML_VDEV_API uint64_t     pyggml_vdev_races_count(void);
PYGGML_VDEV_API const char * pyggml_vdev_races_read(uint64_t number);

/* The timeline: all operations in the order of the host's calls, and who waits for which; a line of JSON each. Off at
 * first; enabling or disabling empties it. NULL: there is no line of that number. */
PYGGML_VDEV_API void         pyggml_vdev_timeline_enable(int on);
PYGGML_VDEV_API uint64_t     pyggml_vdev_timeline_count(void);
PYGGML_VDEV_API uint64_t     pyggml_vdev_timeline_dropped(void); /* lines that did not fit into memory */
PYGGML_VDEV_API const char * pyggml_vdev_timeline_read(uint64_t number);

#ifdef __cplusplus
}
#endif

#endif
