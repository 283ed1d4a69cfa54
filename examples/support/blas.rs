//! Matrix products by cuBLAS, loaded where it is found.
// Each program uses some of it.
#![allow(dead_code)]

use breakable_cuda_graph::driver::{Context, Stream};
use breakable_cuda_graph::sys::CUstream;
use breakable_cuda_graph::{DType, Tensor};
use libloading::Library;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum BlasError {
    #[error("{} is no cuBLAS that can be used: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("cuBLAS: {call} returned status {status}")]
    Call { call: &'static str, status: i32 },
    #[error("cuBLAS: {x:?} times the transpose of {w:?} into {y:?}, all contiguous {dtype}, is no product")]
    Shapes { x: Vec<usize>, w: Vec<usize>, y: Vec<usize>, dtype: DType },
    #[error(transparent)]
    Library(#[from] breakable_cuda_graph::Error),
}

/// A result with that error.
pub type Result<T, E = BlasError> = std::result::Result<T, E>;

impl From<BlasError> for breakable_cuda_graph::Error {
    /// For model code.
    fn from(error: BlasError) -> Self {
        match error {
            BlasError::Library(error) => error,
            other => breakable_cuda_graph::Error::user(other),
        }
    }
}

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
type GemmEx = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    i32,
    i32,
    *const c_void,
    i32,
    i32,
    *const c_void,
    *mut c_void,
    i32,
    i32,
    i32,
    i32,
) -> i32;

const TRANSPOSED: i32 = 1;
const PLAIN: i32 = 0;

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
const VARIABLE: &str = "BCG_CUBLAS";

/// The calls of one library.
pub struct Exports {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    set_math_mode: SetMathMode,
    sgemm: Sgemm,
    gemm_ex: GemmEx,
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
        let failed = |reason: String| BlasError::Unusable { path: path.into(), reason };
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
                gemm_ex: *library.get::<GemmEx>(b"cublasGemmEx")?,
                name: name.display().to_string(),
                _library: library,
            })
        }
    }
}

/// A handle with a workspace of ours, so that it allocates nothing once it is made: products can be captured.
pub struct Blas {
    handle: Handle,
    workspace: Tensor,
    exports: Exports,
}

// SAFETY: the handle is used by one thread at a time: products take the value by reference from model code on one thread, and a replay only
// launches what was captured.
unsafe impl Send for Blas {}
// SAFETY: likewise; each thread of these programs has its own.
unsafe impl Sync for Blas {}

impl Blas {
    /// `None` where no cuBLAS is found. One that [`VARIABLE`] names must be usable. With `tf32`, factors are rounded to TF32 for tensor cores.
    pub fn load(context: &Context, tf32: bool) -> Result<Option<Blas>> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let Some(exports) = Exports::find(named.as_deref().map(Path::new))? else { return Ok(None) };
        let workspace = Tensor::allocate(context, DType::U8, &[32 << 20])?;
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
        let (one, zero) = (1.0_f32, 0.0_f32);
        self.multiply(stream, DType::F32, [x, w, y], |[rows, inner, columns]| {
            // SAFETY: a live handle and tensors of these sizes. cuBLAS is column-major: what is computed is yᵀ = w xᵀ.
            let status = unsafe {
                (self.exports.sgemm)(
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
                )
            };
            check("cublasSgemm", status)
        })
    }

    /// The same for bfloat16, summed in f32. With `accumulate` it is added to what `y` holds.
    pub fn product_bf16(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()> {
        const R_16BF: i32 = 14;
        const COMPUTE_32F: i32 = 68;
        const GEMM_DEFAULT: i32 = -1;
        let (alpha, beta) = (1.0_f32, if accumulate { 1.0_f32 } else { 0.0 });
        let factor = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        self.multiply(stream, DType::BF16, [x, w, y], |[rows, inner, columns]| {
            // SAFETY: as above; the factors are f32, as this compute type has them, and are read before the call returns.
            let status = unsafe {
                (self.exports.gemm_ex)(
                    self.handle,
                    TRANSPOSED,
                    PLAIN,
                    columns,
                    rows,
                    inner,
                    factor(&alpha),
                    at(w),
                    R_16BF,
                    inner,
                    at(x),
                    R_16BF,
                    inner,
                    factor(&beta),
                    at(y),
                    R_16BF,
                    columns,
                    COMPUTE_32F,
                    GEMM_DEFAULT,
                )
            };
            check("cublasGemmEx", status)
        })
    }

    /// Calls `product` with rows, inner length and columns, on the stream and with our workspace.
    fn multiply(
        &self,
        stream: &Stream,
        dtype: DType,
        [x, w, y]: [&Tensor; 3],
        product: impl FnOnce([i32; 3]) -> Result<()>,
    ) -> Result<()> {
        let Some(sizes) = sizes(dtype, [x, w, y]) else {
            let [x, w, y] = [x, w, y].map(|tensor| tensor.shape().to_vec());
            return Err(BlasError::Shapes { x, w, y, dtype });
        };
        if y.elements() == 0 {
            return Ok(());
        }
        stream.context().with_current(|| {
            // SAFETY: a live handle and stream.
            check("cublasSetStream", unsafe { (self.exports.set_stream)(self.handle, stream.as_raw()) })?;
            // Setting the stream takes cuBLAS back to a workspace of its own.
            let (workspace, bytes) = (at(&self.workspace), self.workspace.extent_bytes());
            // SAFETY: a workspace that outlives the handle.
            check("cublasSetWorkspace", unsafe { (self.exports.set_workspace)(self.handle, workspace, bytes) })?;
            product(sizes)
        })??;
        // A segment that holds the product keeps what it reads and writes.
        [x, w, y, &self.workspace].into_iter().for_each(Tensor::keep_in_segment);
        Ok(())
    }
}

/// Rows, inner length and columns of `y = x wᵀ`; `None` where these are no such tensors.
fn sizes(dtype: DType, tensors: [&Tensor; 3]) -> Option<[i32; 3]> {
    if tensors.iter().any(|tensor| tensor.dtype() != dtype || !tensor.layout().is_contiguous()) {
        return None;
    }
    let [&[rows, inner], &[columns, w_inner], &[y_rows, y_columns]] = tensors.map(Tensor::shape) else { return None };
    if inner == 0 || (w_inner, y_rows, y_columns) != (inner, rows, columns) {
        return None;
    }
    Some([i32::try_from(rows).ok()?, i32::try_from(inner).ok()?, i32::try_from(columns).ok()?])
}

fn at(tensor: &Tensor) -> *mut c_void {
    tensor.address() as *mut c_void
}

fn check(call: &'static str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(BlasError::Call { call, status }) }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let Some(context) = self.workspace.context() else { return };
        // SAFETY: made by `load`, destroyed once.
        let done = context.with_current(|| unsafe { (self.exports.destroy)(self.handle) });
        if !matches!(done, Ok(0)) {
            eprintln!("cublasDestroy: {done:?}");
        }
    }
}
