/* See stddef.h. */
#include <stddef.h>
