//! The list of calls as [`Table`] and as a checked method of [`Driver`] for each call.

use super::bindings::*;
use super::call::Call;
use super::call_error::CallError;
use super::calls::for_each_call;
use super::driver::Driver;
use super::first_failure;
use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

#[cold]
fn unsupported(call: Call, have: i32) -> CallError {
    CallError::Unsupported { call, needs: call.since(), have }
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
                    let Some(function) = self.table().$name else { return Err(unsupported(Call::$name, self.version())) };
                    #[cfg(feature = "reference-driver")]
                    if let Some(intercept) = self.intercept() {
                        // SAFETY: as below; it is called at most once.
                        return check(Call::$name, intercept.around(Call::$name, || unsafe { function($($arg),*) }));
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
