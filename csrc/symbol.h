/* Names of what the crate's C code exports. build.rs gives a prefix that holds the crate's version, so that two versions can be in one program. */
#ifndef BCG_SYMBOL_H
#define BCG_SYMBOL_H

#ifndef BCG_PREFIX
#define BCG_PREFIX bcg_unversioned_
#endif
#define BCG_JOIN_EXPANDED(a, b) a##b
#define BCG_JOIN(a, b) BCG_JOIN_EXPANDED(a, b)
#define BCG_SYMBOL(name) BCG_JOIN(BCG_PREFIX, name)

#endif
