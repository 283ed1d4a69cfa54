//! The kernels, loaded and launched.

use super::host_kernels;
use breakable_cuda_graph::driver::{Context, Kernel, LaunchConfig, Module, Stream};
use breakable_cuda_graph::reference::Options;
use breakable_cuda_graph::tensor::Arg;
use breakable_cuda_graph::{Driver, Result, Tensor};
use std::error::Error;
use std::ffi::CStr;

const PTX: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the PTX holds a NUL"),
};

/// A reference driver that has the kernels.
pub(crate) fn reference() -> std::result::Result<Driver, Box<dyn Error>> {
    let files = [("host.c", include_str!("host.c")), ("kernels.cu", include_str!("kernels.cu"))];
    let kernels = host_kernels::compile(&files)?;
    Ok(Driver::reference_with(
        kernels.into_iter().fold(Options::default(), |options, (name, host)| options.kernel(name, host)),
    )?)
}

pub(crate) struct Kernels {
    embed: Kernel,
    mix: Kernel,
    squash: Kernel,
}

impl Kernels {
    pub(crate) fn load(context: &Context) -> Result<Kernels> {
        let module = Module::load_ptx(context, PTX)?;
        Ok(Kernels {
            embed: module.kernel("own_embed")?,
            mix: module.kernel("own_mix")?,
            squash: module.kernel("own_squash")?,
        })
    }

    /// Rows of `table: [tokens, width]` by `ids: [rows]`, to `y: [rows, width]`.
    pub(crate) fn embed(&self, stream: &Stream, ids: &Tensor, table: &Tensor, y: &Tensor) -> Result<Tensor> {
        let &[rows, width] = y.shape() else { unreachable!("a matrix") };
        let arguments = [ids.into(), table.into(), y.into(), Arg::U32(rows as u32), Arg::U32(width as u32)];
        // SAFETY: the arguments are the kernel's, and it stays in tensors of these shapes.
        unsafe { self.embed.launch(stream, LaunchConfig::for_elements(y.elements()), &arguments)? };
        Ok(y.clone())
    }

    /// Means over sequences of `x: [rows, width]`, to `y` of the same shape. Rows after the last sequence are left as they are.
    pub(crate) fn mix(&self, stream: &Stream, x: &Tensor, starts: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (sequences, width) = (starts.elements() - 1, x.shape()[1]);
        let arguments = [x.into(), starts.into(), y.into(), Arg::U32(sequences as u32), Arg::U32(width as u32)];
        // SAFETY: as above.
        unsafe { self.mix.launch(stream, LaunchConfig::for_elements(sequences * width), &arguments)? };
        Ok(y.clone())
    }

    /// `x / (1 + |x|)`, to `y` of the same shape.
    pub(crate) fn squash(&self, stream: &Stream, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let arguments = [x.into(), y.into(), Arg::U64(x.elements() as u64)];
        // SAFETY: as above.
        unsafe { self.squash.launch(stream, LaunchConfig::for_elements(x.elements()), &arguments)? };
        Ok(y.clone())
    }
}
