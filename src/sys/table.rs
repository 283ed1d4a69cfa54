//! What the list of calls is expanded into: [`Call`], [`Table`] and a checked method of [`Driver`] for each call.

use super::bindings::*;
use super::calls::for_each_call;
use super::driver::Driver;
use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::fmt;

/// A driver call that failed, or that this driver does not have. Small and `Copy`: it is made on every failing path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The driver returned something else than `CUDA_SUCCESS`.
    Failed {
        /// The call.
        call: Call,
        /// What it returned.
        code: CUresult,
    },
    /// An optional call that this driver does not have.
    Unsupported {
        /// The call.
        call: Call,
        /// The CUDA version that introduced it, as `1000 * major + 10 * minor`.
        needs: i32,
        /// The CUDA version of the loaded driver.
        have: i32,
    },
}

impl CallError {
    /// The call that failed.
    pub fn call(&self) -> Call {
        match *self {
            CallError::Failed { call, .. } | CallError::Unsupported { call, .. } => call,
        }
    }

    /// The driver's code; `CUDA_ERROR_NOT_SUPPORTED` for a call that the driver does not have.
    pub fn code(&self) -> CUresult {
        match *self {
            CallError::Failed { code, .. } => code,
            CallError::Unsupported { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CallError::Failed { call, code } => write!(f, "{call} returned {}", super::driver::CodeName(code)),
            CallError::Unsupported { call, needs, have } => write!(
                f,
                "{call} needs a driver of CUDA {}, this one is CUDA {}",
                super::driver::VersionName(needs),
                super::driver::VersionName(have)
            ),
        }
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

thread_local! {
    /// The first call that failed on this thread since the slot was last cleared. Written on failing paths only.
    static FIRST_FAILURE: std::cell::Cell<Option<CallError>> = const { std::cell::Cell::new(None) };
}

/// The thread's slot for the first failing call, so that a capture can name the call that broke it and not only the one that found out.
pub(crate) mod first_failure {
    use super::{CallError, FIRST_FAILURE};

    /// Empties the slot.
    pub(crate) fn clear() {
        FIRST_FAILURE.set(None);
    }

    /// What the slot holds.
    pub(crate) fn get() -> Option<CallError> {
        FIRST_FAILURE.get()
    }

    /// Puts back what an earlier [`get`] gave, after calls whose failures are told elsewhere.
    pub(crate) fn set(failure: Option<CallError>) {
        FIRST_FAILURE.set(failure);
    }

    #[cold]
    pub(super) fn note(error: CallError) -> CallError {
        if FIRST_FAILURE.get().is_none() {
            FIRST_FAILURE.set(Some(error));
        }
        error
    }
}

#[inline]
fn check(call: Call, code: CUresult) -> Result<(), CallError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        // An answer and not a failure.
        CUresult::CUDA_ERROR_NOT_READY => Err(CallError::Failed { call, code }),
        _ => Err(first_failure::note(CallError::Failed { call, code })),
    }
}

macro_rules! is_needed {
    (needed) => {
        true
    };
    (optional) => {
        false
    };
}

/// A header is always new enough to declare the needed calls. build.rs tells whether it declares the optional ones too.
macro_rules! if_declared {
    (needed $($check:tt)*) => {
        $($check)*
    };
    (optional $($check:tt)*) => {
        #[cfg(header_declares_optional_calls)]
        $($check)*
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

        /// The resolved entry points, under their exported names. `None` is an optional call that the driver does not have.
        #[allow(non_snake_case, missing_docs)]
        #[derive(Clone)]
        pub struct Table { $(pub $name: Option<unsafe extern "C" fn($($type),*) -> CUresult>),* }

        impl Table {
            /// Fills the table from `resolve`, which gives the address of a call or null.
            ///
            /// # Safety
            /// Each address must be that of a function with the signature that the list gives for the call.
            pub unsafe fn resolve(mut resolve: impl FnMut(Call) -> *const c_void) -> Table {
                Table {
                    // SAFETY: the caller vouches for the signature; `Option<fn>` is a nullable pointer.
                    $($name: unsafe {
                        core::mem::transmute::<*const c_void, Option<unsafe extern "C" fn($($type),*) -> CUresult>>(resolve(Call::$name))
                    }),*
                }
            }

            /// Whether the call is there.
            pub fn has(&self, call: Call) -> bool {
                match call { $(Call::$name => self.$name.is_some()),* }
            }
        }

        /// The driver's calls, one method each, with the code turned into a [`CallError`]. All are `unsafe` as the C functions are: the
        /// caller answers for handles and pointers. The documentation of each is at
        /// <https://docs.nvidia.com/cuda/cuda-driver-api/>.
        #[allow(non_snake_case, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        impl Driver {
            $(
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) -> Result<(), CallError> {
                    let Some(function) = self.table().$name else { return Err(self.unsupported(Call::$name)) };
                    #[cfg(feature = "reference-driver")]
                    if let Some(watch) = self.intercept() {
                        // SAFETY: as below; the watch calls it at most once.
                        return check(Call::$name, watch.around(Call::$name, || unsafe { function($($arg),*) }));
                    }
                    // SAFETY: the table holds a function of this signature; the caller answers for the arguments.
                    check(Call::$name, unsafe { function($($arg),*) })
                }
            )*
        }

        /// Holds the list's signatures to those of the header: never called, and generic so that no code (and no reference to the library)
        /// comes of it.
        #[allow(dead_code, clippy::extra_unused_type_parameters)]
        fn signatures_are_those_of_the_header<T>() {
            $(if_declared! { $need let _: unsafe extern "C" fn($($type),*) -> CUresult = super::bindings::$name; })*
        }
    };
}

for_each_call!(expand);
