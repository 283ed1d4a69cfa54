//! The entry points, by subject. Each finds its driver through the calling thread, does its work under that one's lock and returns a code.
//!
//! Pointers to results are written only on success, and never when they are null, which is CUDA_ERROR_INVALID_VALUE.

mod context;
mod device;
mod event;
mod exec;
mod graph;
mod memory;
mod module;
mod pool;
mod stream;
mod virtual_memory;

use super::options::Options;
use super::state::Outcome;
use crate::sys::{CUdriverProcAddressQueryResult, CUresult, Call};
use core::ffi::{CStr, c_char, c_int, c_void};

/// Writes a result.
///
/// # Safety
/// `to` is null or a valid place for a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

/// A handle as the driver's pointer types have it.
fn as_pointer<T>(handle: super::ids::Handle) -> *mut T {
    core::ptr::without_provenance_mut(handle)
}

/// Defines entry points: `fn name(state, arguments) { body }` with a body that comes to an [`Outcome`].
macro_rules! entries {
    ($(fn $name:ident($state:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $crate::sys::CUresult {
                $crate::reference::active::call(|$state: &mut $crate::reference::state::State| $body)
            }
        )*
    };
}
use entries;

/// The address of an entry point by its exported name, or null.
pub(super) fn export(name: &str, options: &Options) -> *const c_void {
    if name == "cuGetProcAddress_v2" {
        return if options.version >= 12_000 { get_proc_address as *const c_void } else { core::ptr::null() };
    }
    let Some(call) = Call::ALL.iter().copied().find(|call| call.name() == name) else { return core::ptr::null() };
    let lacks = call.since() > options.version || options.missing.contains(&call);
    if lacks { core::ptr::null() } else { address(call) }
}

/// `cuGetProcAddress`: by name and version. It only ever finds the exact form of the list, as the newest that the version has.
unsafe extern "C" fn get_proc_address(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    use CUdriverProcAddressQueryResult as Status;
    super::active::call(|state| {
        if name.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller gives a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let named = Call::ALL.iter().filter(|call| crate::sys::base_name(call.name()) == name);
        let call = named.copied().filter(|call| call.since() <= version).max_by_key(|call| call.since());
        let found = call.map_or(core::ptr::null(), |call| export(call.name(), &state.options));
        let result = match (call, found.is_null()) {
            (None, _) => Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
            (Some(_), true) => Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
            (Some(_), false) => Status::CU_GET_PROC_ADDRESS_SUCCESS,
        };
        // SAFETY: the caller gives null or valid places.
        unsafe {
            put(address, found.cast_mut())?;
            if !status.is_null() {
                status.write(result);
            }
        }
        if found.is_null() { Err(CUresult::CUDA_ERROR_NOT_FOUND) } else { Ok(()) }
    })
}

/// All entry points.
mod all {
    pub(super) use super::{
        context::*, device::*, event::*, exec::*, graph::*, memory::*, module::*, pool::*, stream::*, virtual_memory::*,
    };
}

macro_rules! addresses {
    ($($need:ident $since:literal $name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The entry point of a call. Each has the signature that the list gives it.
        fn address(call: Call) -> *const c_void {
            use crate::sys::*;
            use core::ffi::{c_uchar, c_uint, c_ulonglong};
            match call {
                $(Call::$name => {
                    let entry: unsafe extern "C" fn($($type),*) -> CUresult = all::$name;
                    entry as *const c_void
                })*
            }
        }
    };
}
crate::sys::for_each_call!(addresses);
