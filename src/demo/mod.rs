//! Kernels of the examples, tests and benchmarks, and operations over them. No part of what an engine needs from the crate.

mod ops;

pub use ops::{Ops, Weight};

use std::ffi::CStr;

/// PTX made from `csrc/demo.cu` by `scripts/ptx.py`.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../../csrc/demo.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    };

crate::reference::host_kernels! {
    /// The same kernels compiled for the host, for the reference driver.
    pub(crate) HOST:
    "demo_fill" => bcg_host_demo_fill,
    "demo_relu" => bcg_host_demo_relu,
    "demo_scale" => bcg_host_demo_scale,
    "demo_add" => bcg_host_demo_add,
    "demo_gelu" => bcg_host_demo_gelu,
    "demo_add_bias" => bcg_host_demo_add_bias,
    "demo_linear" => bcg_host_demo_linear,
    "demo_layer_norm" => bcg_host_demo_layer_norm,
    "demo_attention" => bcg_host_demo_attention,
    "demo_embed" => bcg_host_demo_embed,
    "demo_mean_pool" => bcg_host_demo_mean_pool,
    "demo_spin" => bcg_host_demo_spin,
}
