//! Matrix products by cuBLAS, loaded where it is found.

use crate::error::{EmbedError, Result};
use breakable_cuda_graph::Tensor;
use breakable_cuda_graph::driver::{Context, DeviceBuffer, Stream};
use breakable_cuda_graph::sys::CUstream;
use libloading::Library;
use std::ffi::c_void;
use std::path::Path;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> i32;
type Destroy = unsafe extern "C" fn(Handle) -> i32;
type SetStream = unsafe extern "C" fn(Handle, CUstream) -> i32;
type SetMathMode = unsafe extern "C" fn(Handle, i32) -> i32;
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

/// Names the library's file, or a folder that holds it under one of the names, such as `nvidia/cu13/lib` of a Python environment.
const VARIABLE: &str = "EMBED_CUBLAS";

/// The calls of one library.
pub struct Exports {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    set_math_mode: SetMathMode,
    sgemm: Sgemm,
    name: String,
    /// Loaded for as long as its calls can be made.
    _library: Library,
}

impl Exports {
    /// The library in this file or folder, which must be usable; without one the first that the loader finds, if any.
    pub fn find(named: Option<&Path>) -> Result<Option<Exports>> {
        let Some(path) = named else {
            return Ok(NAMES.iter().find_map(|name| Exports::load(Path::new(name)).ok()));
        };
        let failed = |reason: String| EmbedError::NoBlas { path: path.into(), reason };
        let inside = || NAMES.iter().map(Path::new).filter(|name| name.is_relative()).map(|name| path.join(name));
        let file = if path.is_dir() { inside().find(|file| file.is_file()) } else { Some(path.into()) };
        let file = file.ok_or_else(|| failed("the folder holds none under a known name".into()))?;
        Exports::load(&file).map(Some).map_err(|error| failed(error.to_string()))
    }

    fn load(name: &Path) -> std::result::Result<Exports, libloading::Error> {
        // SAFETY: loading cuBLAS runs its initialisers, which is what is wanted; these exports have the documented signatures.
        unsafe {
            let library = Library::new(name)?;
            Ok(Exports {
                create: *library.get::<Create>(b"cublasCreate_v2")?,
                destroy: *library.get::<Destroy>(b"cublasDestroy_v2")?,
                set_stream: *library.get::<SetStream>(b"cublasSetStream_v2")?,
                set_workspace: *library.get::<SetWorkspace>(b"cublasSetWorkspace_v2")?,
                set_math_mode: *library.get::<SetMathMode>(b"cublasSetMathMode")?,
                sgemm: *library.get::<Sgemm>(b"cublasSgemm_v2")?,
                name: name.display().to_string(),
                _library: library,
            })
        }
    }
}

/// A handle with a workspace of ours, so that it allocates nothing once it is made: products can be captured.
pub struct Blas {
    handle: Handle,
    workspace: DeviceBuffer,
    exports: Exports,
}

// SAFETY: the handle is used by one thread at a time: `product` takes the value by reference from model code on one thread, and a replay only
// launches what was captured.
unsafe impl Send for Blas {}
// SAFETY: likewise; the example has one thread.
unsafe impl Sync for Blas {}

impl Blas {
    /// `None` where no cuBLAS is found. One that [`VARIABLE`] names must be usable. With `tf32`, factors are rounded to TF32 for tensor cores.
    pub fn load(context: &Context, tf32: bool) -> Result<Option<Blas>> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let Some(exports) = Exports::find(named.as_deref().map(Path::new))? else { return Ok(None) };
        let workspace = DeviceBuffer::new(context, 32 << 20)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place, with the context current.
        check("cublasCreate", context.with_current(|| unsafe { (exports.create)(&mut handle) })?)?;
        let blas = Blas { handle, workspace, exports };
        if tf32 {
            const TF32_TENSOR_OP_MATH: i32 = 3;
            // SAFETY: a live handle, with its context current.
            let status =
                context.with_current(|| unsafe { (blas.exports.set_math_mode)(blas.handle, TF32_TENSOR_OP_MATH) })?;
            check("cublasSetMathMode", status)?;
        }
        Ok(Some(blas))
    }

    pub fn name(&self) -> &str {
        &self.exports.name
    }

    /// `y[rows, columns] = x[rows, inner] wᵀ`, with `w[columns, inner]`; all contiguous f32.
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
                check("cublasSetStream", (self.exports.set_stream)(self.handle, stream.as_raw()))?;
                let workspace = self.workspace.address() as *mut c_void;
                check(
                    "cublasSetWorkspace",
                    (self.exports.set_workspace)(self.handle, workspace, self.workspace.bytes()),
                )?;
                let status = (self.exports.sgemm)(
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
        let done = self.workspace.context().with_current(|| unsafe { (self.exports.destroy)(self.handle) });
        if !matches!(done, Ok(0)) {
            eprintln!("embed: cublasDestroy: {done:?}");
        }
    }
}
