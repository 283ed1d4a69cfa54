/* Names of what C code exports. The crate's own has a prefix that holds its version, so that two versions can be in one program; whoever compiles
 * kernels for the host may define another one. */
#ifndef BCG_SYMBOL_H
#define BCG_SYMBOL_H

#ifndef BCG_PREFIX
#define BCG_PREFIX host_
#endif
#define BCG_JOIN_EXPANDED(a, b) a##b
#define BCG_JOIN(a, b) BCG_JOIN_EXPANDED(a, b)
#define BCG_SYMBOL(name) BCG_JOIN(BCG_PREFIX, name)

#endif
