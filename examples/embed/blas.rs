//! Matrix products by cuBLAS, loaded where it is found.

use crate::error::{EmbedError, Result};
use breakable_cuda_graph::Tensor;
use breakable_cuda_graph::driver::{Context, DeviceBuffer, Stream};
use breakable_cuda_graph::sys::CUstream;
use libloading::Library;
use std::ffi::c_void;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> i32;
type Destroy = unsafe extern "C" fn(Handle) -> i32;
type SetStream = unsafe extern "C" fn(Handle, CUstream) -> i32;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> i32;
type Sgemm = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const f32,
    *const c_void,
    i32,
    *const c_void,
    i32,
    *const f32,
    *mut c_void,
    i32,
) -> i32;

/// The versions that are known to have these calls, and where toolkits put them.
const NAMES: &[&str] = &[
    "libcublas.so.13",
    "libcublas.so.12",
    "/usr/local/cuda/lib64/libcublas.so.13",
    "/usr/local/cuda/lib64/libcublas.so.12",
    "cublas64_13.dll",
    "cublas64_12.dll",
];

/// A handle with a workspace of ours, so that it allocates nothing once it is made: products can be captured.
pub struct Blas {
    handle: Handle,
    workspace: DeviceBuffer,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    sgemm: Sgemm,
    destroy: Destroy,
    name: &'static str,
    /// Never unloaded before the handle is gone.
    _library: Library,
}

// SAFETY: the handle is used by one thread at a time: `product` takes the value by reference from model code on one thread, and a replay only
// launches what was captured.
unsafe impl Send for Blas {}
// SAFETY: likewise; the example has one thread.
unsafe impl Sync for Blas {}

impl Blas {
    /// `None` where no cuBLAS is found.
    pub fn load(context: &Context) -> Result<Option<Blas>> {
        for &name in NAMES {
            // SAFETY: loading cuBLAS runs its initialisers, which is what is wanted.
            let Ok(library) = (unsafe { Library::new(name) }) else { continue };
            // SAFETY: these exports have the documented signatures.
            let symbols = unsafe {
                (
                    library.get::<Create>(b"cublasCreate_v2").map(|symbol| *symbol),
                    library.get::<Destroy>(b"cublasDestroy_v2").map(|symbol| *symbol),
                    library.get::<SetStream>(b"cublasSetStream_v2").map(|symbol| *symbol),
                    library.get::<SetWorkspace>(b"cublasSetWorkspace_v2").map(|symbol| *symbol),
                    library.get::<Sgemm>(b"cublasSgemm_v2").map(|symbol| *symbol),
                )
            };
            let (Ok(create), Ok(destroy), Ok(set_stream), Ok(set_workspace), Ok(sgemm)) = symbols else { continue };
            let workspace = DeviceBuffer::new(context, 32 << 20)?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: a valid place, with the context current.
            check("cublasCreate", context.with_current(|| unsafe { create(&mut handle) })?)?;
            return Ok(Some(Blas {
                handle,
                workspace,
                set_stream,
                set_workspace,
                sgemm,
                destroy,
                name,
                _library: library,
            }));
        }
        Ok(None)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `y[rows, columns] = x[rows, inner] wᵀ`, with `w[columns, inner]`; all contiguous f32. No TF32: the default math mode.
    pub fn product(&self, stream: &Stream, x: &Tensor, w: &Tensor, y: &Tensor) -> Result<()> {
        let (rows, inner, columns) = (x.shape()[0] as i32, x.shape()[1] as i32, w.shape()[0] as i32);
        let at = |tensor: &Tensor| tensor.address() as *mut c_void;
        let (one, zero) = (1.0_f32, 0.0_f32);
        const TRANSPOSED: i32 = 1;
        const PLAIN: i32 = 0;
        stream.context().with_current(|| {
            // SAFETY: a live handle and stream, tensors of these sizes, and a workspace that outlives the handle. cuBLAS is column-major: what is
            // computed is yᵀ = w xᵀ.
            unsafe {
                check("cublasSetStream", (self.set_stream)(self.handle, stream.as_raw()))?;
                let workspace = self.workspace.address() as *mut c_void;
                check("cublasSetWorkspace", (self.set_workspace)(self.handle, workspace, self.workspace.bytes()))?;
                let status = (self.sgemm)(
                    self.handle,
                    TRANSPOSED,
                    PLAIN,
                    columns,
                    rows,
                    inner,
                    &one,
                    at(w),
                    inner,
                    at(x),
                    inner,
                    &zero,
                    at(y),
                    columns,
                );
                check("cublasSgemm", status)
            }
        })??;
        // A segment that holds the product keeps what it reads and writes.
        [x, w, y].into_iter().for_each(Tensor::keep_in_segment);
        Ok(())
    }
}

fn check(call: &'static str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(EmbedError::Blas { call, status }) }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `load`, destroyed once.
        let done = self.workspace.context().with_current(|| unsafe { (self.destroy)(self.handle) });
        if !matches!(done, Ok(0)) {
            eprintln!("embed: cublasDestroy: {done:?}");
        }
    }
}
