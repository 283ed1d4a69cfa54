/* Counts what csrc/weak_ref.c allocates and frees, and reads the descriptions as a consumer in C does. The exit status is the number of the check
 * that failed. */
#include <stdlib.h>

static int allocated, freed;
static void *last;

static void *counted_allocate(size_t bytes) {
    allocated++;
    return last = malloc(bytes);
}

static void *no_memory(size_t bytes) {
    (void)bytes;
    return NULL;
}

static void *(*allocate)(size_t) = counted_allocate;

static void counted_free(void *pointer) {
    freed++;
    free(pointer);
}

#define BCG_ALLOCATE allocate
#define BCG_FREE counted_free
#include "weak_ref.c"

#define CHECK(number, condition) \
    if (!(condition))            \
    return number

int main(void) {
    int64_t shape[] = {2, 3}, strides[] = {3, 1};
    float memory[6];
    struct bcg_dl_tensor source = {memory, {1, 0}, 2, {2, 32, 1}, shape, strides, 0};
    struct bcg_managed *managed = BCG_SYMBOL(describe)(&source);
    struct bcg_managed_versioned *versioned;
    CHECK(1, managed && (void *)managed == last && allocated == 1 && freed == 0);
    CHECK(2, managed->tensor.data == memory && managed->owner == NULL);
    CHECK(3, managed->tensor.shape != shape && managed->tensor.strides != strides);
    /* The source is not looked at again. */
    shape[0] = strides[0] = 7;
    CHECK(4, managed->tensor.shape[0] == 2 && managed->tensor.shape[1] == 3);
    CHECK(5, managed->tensor.strides[0] == 3 && managed->tensor.strides[1] == 1);
    managed->deleter(managed);
    CHECK(6, allocated == 1 && freed == 1);

    versioned = BCG_SYMBOL(describe_versioned)(&source);
    CHECK(7, versioned && (void *)versioned == last && allocated == 2 && freed == 1);
    CHECK(8, versioned->major == 1 && versioned->flags == 0 && versioned->tensor.shape[0] == 7);
    versioned->deleter(versioned);
    CHECK(9, allocated == 2 && freed == 2);

    source.rank = 0;
    source.shape = source.strides = NULL;
    managed = BCG_SYMBOL(describe)(&source);
    CHECK(10, managed && managed->tensor.rank == 0);
    managed->deleter(managed);
    CHECK(11, allocated == 3 && freed == 3);

    allocate = no_memory;
    CHECK(12, BCG_SYMBOL(describe)(&source) == NULL && BCG_SYMBOL(describe_versioned)(&source) == NULL);
    CHECK(13, freed == 3);

    /* The ABI on a 64-bit machine. */
    CHECK(14, sizeof(void *) != 8 || (sizeof(struct bcg_dl_tensor) == 48 && sizeof(struct bcg_managed) == 64));
    CHECK(15, sizeof(void *) != 8 || (sizeof(struct bcg_managed_versioned) == 80 && offsetof(struct bcg_managed_versioned, tensor) == 32));
    return 0;
}
