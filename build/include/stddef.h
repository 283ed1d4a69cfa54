/* The types that cuda.h takes from stddef.h, stdint.h and stdlib.h. bindgen reads these in place of the C library's and the compiler's own
 * headers, so that bindings come out the same on every machine, for every target, and with a libclang that has no headers beside it. */
#ifndef BCG_STDDEF_H
#define BCG_STDDEF_H

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
#ifndef __cplusplus
typedef __WCHAR_TYPE__ wchar_t;
#endif
#define NULL ((void *)0)

#endif
