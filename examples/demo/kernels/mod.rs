//! The kernels: as PTX for libcuda, as host functions for the reference driver.

#[path = "../../support/host_kernels.rs"]
mod host_kernels;

use breakable_cuda_graph::Driver;
use breakable_cuda_graph::reference::{HostKernel, Options};
use std::ffi::CStr;
use std::sync::OnceLock;

/// PTX made from `demo.cu` by `scripts/ptx.py`.
pub const DEMO: &CStr = text(concat!(include_str!("demo.ptx"), "\0"));

/// PTX made from `decoder.cu` by `scripts/ptx.py`.
pub const DECODER: &CStr = text(concat!(include_str!("decoder.ptx"), "\0"));

const fn text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    }
}

/// Options of a reference driver that has the kernels. They are compiled for the host at the first call.
pub fn options() -> Options {
    static KERNELS: OnceLock<Vec<(String, HostKernel)>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| {
        let files = [
            ("host.c", include_str!("host.c")),
            ("demo.cu", include_str!("demo.cu")),
            ("decoder.cu", include_str!("decoder.cu")),
        ];
        host_kernels::compile(&files).unwrap_or_else(|error| panic!("the demo kernels for the host: {error}"))
    });
    kernels.iter().fold(Options::default(), |options, (name, host)| options.kernel(name.as_str(), *host))
}

/// A reference driver that has the kernels.
pub fn driver() -> Result<Driver, breakable_cuda_graph::sys::LoadError> {
    Driver::reference_with(options())
}
