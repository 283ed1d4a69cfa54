//! The driver's side: bindings and the loader, handles, contexts, tensors, the reference driver, and the facts about devices that it is held to.

#[path = "../support/mod.rs"]
mod support;

mod build_discovery;
mod contexts;
#[cfg(feature = "dlpack")]
mod dlpack;
mod facts;
#[cfg(target_os = "linux")]
mod fork;
mod kernels;
#[cfg(target_os = "linux")]
mod loader;
mod padding;
#[cfg(not(feature = "driver-tests"))]
mod reference;
