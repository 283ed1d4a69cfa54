//! [`Call`]: the name of a driver call.

use super::calls::for_each_call;
use std::fmt;

macro_rules! is_needed {
    (needed) => {
        true
    };
    (optional) => {
        false
    };
}

macro_rules! expand {
    ($($need:ident $since:literal $name:ident($($arg:ident: $type:ty),*);)*) => {
        /// Every driver call that the crate knows.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u16)]
        pub enum Call { $($name),* }

        impl Call {
            /// All calls, in the order of the list.
            pub const ALL: &'static [Call] = &[$(Call::$name),*];

            /// The name under which the library exports it.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$name => stringify!($name)),* }
            }

            /// The CUDA version that introduced this form of the call, as `1000 * major + 10 * minor`.
            pub const fn since(self) -> i32 {
                match self { $(Call::$name => $since),* }
            }

            /// Whether a driver that lacks it can't be used at all.
            pub const fn is_needed(self) -> bool {
                match self { $(Call::$name => is_needed!($need)),* }
            }
        }
    };
}

for_each_call!(expand);

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
