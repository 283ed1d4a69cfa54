/* Tensors as DLPack views that own nothing but their own description.
 *
 * The structures are those of the DLPack ABI, version 1 and the one before it without a version, in this crate's own words. Their deleter is called
 * from any language and from any thread, also while that language is shutting down, so it is plain C: it frees the one allocation that a
 * description is, and can't unwind. src/tensor/dlpack declares the same structures. */
#include "breakable_cuda_graph/symbol.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A test counts allocations by putting its own functions here. */
#ifndef BCG_ALLOCATE
#define BCG_ALLOCATE malloc
#define BCG_FREE free
#endif

struct bcg_device {
    int32_t type;
    int32_t id;
};

struct bcg_data_type {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct bcg_dl_tensor {
    void *data;
    struct bcg_device device;
    int32_t rank;
    struct bcg_data_type data_type;
    int64_t *shape;
    /* In elements. */
    int64_t *strides;
    uint64_t byte_offset;
};

struct bcg_managed {
    struct bcg_dl_tensor tensor;
    void *owner;
    void (*deleter)(struct bcg_managed *self);
};

struct bcg_managed_versioned {
    uint32_t major, minor;
    void *owner;
    void (*deleter)(struct bcg_managed_versioned *self);
    uint64_t flags;
    struct bcg_dl_tensor tensor;
};

/* 1.1 is the first version with the 8-bit floating-point types. */
#define BCG_MAJOR 1
#define BCG_MINOR 1

static void delete_managed(struct bcg_managed *self) {
    BCG_FREE(self);
}

static void delete_versioned(struct bcg_managed_versioned *self) {
    BCG_FREE(self);
}

/* One allocation: `head` bytes of a managed tensor that begins `inside` before its tensor, then its shape and strides. */
static void *describe(size_t head, size_t inside, const struct bcg_dl_tensor *source) {
    size_t count = source->rank < 0 ? 0 : (size_t)source->rank, lengths = count * sizeof(int64_t);
    char *managed = BCG_ALLOCATE(head + 2 * lengths);
    struct bcg_dl_tensor *tensor;
    if (managed == NULL)
        return NULL;
    memset(managed, 0, head);
    tensor = (struct bcg_dl_tensor *)(managed + inside);
    *tensor = *source;
    tensor->shape = (int64_t *)(managed + head);
    tensor->strides = tensor->shape + count;
    if (count != 0) {
        memcpy(tensor->shape, source->shape, lengths);
        memcpy(tensor->strides, source->strides, lengths);
    }
    return managed;
}

/* A copy of the description, with its shape and strides, under a deleter; null when there is no memory. */
struct bcg_managed *BCG_SYMBOL(describe)(const struct bcg_dl_tensor *source);
struct bcg_managed *BCG_SYMBOL(describe)(const struct bcg_dl_tensor *source) {
    struct bcg_managed *managed = describe(sizeof *managed, offsetof(struct bcg_managed, tensor), source);
    if (managed != NULL)
        managed->deleter = delete_managed;
    return managed;
}

/* The same in the form that tells its version. */
struct bcg_managed_versioned *BCG_SYMBOL(describe_versioned)(const struct bcg_dl_tensor *source);
struct bcg_managed_versioned *BCG_SYMBOL(describe_versioned)(const struct bcg_dl_tensor *source) {
    struct bcg_managed_versioned *managed = describe(sizeof *managed, offsetof(struct bcg_managed_versioned, tensor), source);
    if (managed != NULL) {
        managed->major = BCG_MAJOR;
        managed->minor = BCG_MINOR;
        managed->deleter = delete_versioned;
    }
    return managed;
}
