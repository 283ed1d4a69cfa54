//! Tensors and values as kernel arguments.

use super::owned::Tensor;
use crate::driver::KeepAlive;
use crate::driver::capture_state::{self, LaunchRecorder};
use crate::driver::launch_list::MAX_PARAMETERS;
use crate::driver::operation::{self, Destination};
use crate::driver::{Kernel, LaunchConfig, Stream};
use crate::error::{Misuse, Result};
use core::ffi::c_void;
use core::mem::MaybeUninit;

/// The most arguments of one launch.
pub const MAX_ARGUMENTS: usize = MAX_PARAMETERS;

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// A pointer to the tensor's first element.
    Tensor(&'a Tensor),
    /// A 32-bit unsigned value.
    U32(u32),
    /// A 32-bit signed value.
    I32(i32),
    /// A 64-bit unsigned value, or a raw address, for which the caller answers.
    U64(u64),
    /// A 64-bit signed value.
    I64(i64),
    /// A 32-bit floating-point value.
    F32(f32),
    /// A 64-bit floating-point value.
    F64(f64),
    /// The bytes of a structure that is passed by value.
    Bytes(&'a [u8]),
}

macro_rules! from_values {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(
            impl From<$type> for Arg<'_> {
                fn from(value: $type) -> Self {
                    Arg::$variant(value)
                }
            }
        )*
    };
}

from_values! { u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64 }

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Arg::Tensor(tensor)
    }
}

impl Kernel {
    /// Launches the kernel ([`cuLaunchKernel`, and `cuLaunchKernelEx` for a launch with
    /// attributes](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html)). In a segment the launch is recorded with these arguments, and the segment keeps the tensors among them that are not of the recording itself. Allocates nothing.
    ///
    /// # Errors
    /// [`Misuse::TooManyArguments`]; [`Misuse::ArgumentCount`] and [`Misuse::ArgumentSize`] where the driver tells what parameters a kernel has (from CUDA
    /// 12.4 on); [`Misuse::ContextMismatch`] for a stream or tensor of another context, [`TensorError::Location`](crate::TensorError::Location) for a host
    /// tensor, [`CallError::Unsupported`](crate::sys::CallError::Unsupported) for attributes where the driver lacks the call, and what the driver returns.
    ///
    /// # Safety
    /// There is one argument for each parameter of the kernel, of its type and size, and the kernel reads and writes no more memory than the
    /// tensors have.
    #[doc(alias = "cuLaunchKernel", alias = "cuLaunchKernelEx")]
    pub unsafe fn launch(&self, stream: &Stream, config: LaunchConfig, arguments: &[Arg<'_>]) -> Result<()> {
        if arguments.len() > MAX_ARGUMENTS {
            let (kernel, given) = (self.name().to_owned(), arguments.len());
            return Err(Misuse::TooManyArguments { kernel, given, limit: MAX_ARGUMENTS }.into());
        }
        self.context().expect_same(stream.context(), "stream")?;
        let mut in_use = ArgumentsInUse { arguments, entered: 0 };
        for argument in arguments {
            if let Arg::Tensor(tensor) = argument {
                tensor.expect_on(self.context(), "kernel argument")?;
            }
            in_use.enter_next(argument)?;
        }
        self.expect_arguments(arguments)?;
        // A listed launch has no attributes: the driver captures those that do.
        let listed = config.attributes.is_empty()
            && capture_state::record_launch(stream.as_raw(), |launches| {
                launches.begin(self.as_raw(), config);
                launches.keep(self.kept());
                arguments.iter().for_each(|argument| argument.record(launches));
            });
        if listed {
            return Ok(());
        }
        let to = self.admit(stream)?;
        for argument in arguments {
            if let Arg::Tensor(tensor) = argument {
                tensor.used_by(&to, stream)?;
            }
        }
        // SAFETY: as the caller says; the places were checked.
        unsafe { self.enqueue_arguments(stream, &to, config, arguments) }
    }

    /// Refuses arguments that are not of the parameters' number and sizes, where these are known: the driver would read past a value that is too short.
    #[inline]
    fn expect_arguments(&self, arguments: &[Arg<'_>]) -> Result<()> {
        let Some(sizes) = self.parameter_sizes() else { return Ok(()) };
        self.expect_count(arguments.len())?;
        match arguments.iter().zip(sizes).position(|(argument, size)| argument.bytes() != *size) {
            None => Ok(()),
            Some(position) => Err(Misuse::ArgumentSize {
                kernel: self.name().to_owned(),
                position,
                expected: sizes[position],
                given: arguments[position].bytes(),
            }
            .into()),
        }
    }

    /// Launches the kernel with pointers to its arguments.
    ///
    /// # Safety
    /// As for [`launch`](Kernel::launch), with no more than [`MAX_ARGUMENTS`] on the kernel's context.
    unsafe fn enqueue_arguments(
        &self,
        stream: &Stream,
        to: &Destination,
        config: LaunchConfig,
        arguments: &[Arg<'_>],
    ) -> Result<()> {
        // Filled as far as there are arguments.
        let mut addresses = [const { MaybeUninit::<u64>::uninit() }; MAX_ARGUMENTS];
        let mut pointers = [const { MaybeUninit::<*mut c_void>::uninit() }; MAX_ARGUMENTS];
        for ((argument, address), pointer) in arguments.iter().zip(&mut addresses).zip(&mut pointers) {
            pointer.write(match argument {
                Arg::Tensor(tensor) => core::ptr::from_mut(address.write(tensor.address())).cast(),
                Arg::U32(value) => (&raw const *value).cast_mut().cast(),
                Arg::I32(value) => (&raw const *value).cast_mut().cast(),
                Arg::U64(value) => (&raw const *value).cast_mut().cast(),
                Arg::I64(value) => (&raw const *value).cast_mut().cast(),
                Arg::F32(value) => (&raw const *value).cast_mut().cast(),
                Arg::F64(value) => (&raw const *value).cast_mut().cast(),
                Arg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
            });
        }
        // SAFETY: as many were written as there are arguments.
        let pointers =
            unsafe { core::slice::from_raw_parts_mut(pointers.as_mut_ptr().cast::<*mut c_void>(), arguments.len()) };
        // SAFETY: one pointer for each argument, valid through the call, which copies the values; the caller vouches for the rest.
        unsafe { self.enqueue(stream, to, config, pointers) }
    }
}

/// The memory of a launch's arguments, which is not taken away before the launch is enqueued.
struct ArgumentsInUse<'a> {
    arguments: &'a [Arg<'a>],
    /// How many of them were entered.
    entered: usize,
}

impl ArgumentsInUse<'_> {
    #[inline]
    fn enter_next(&mut self, argument: &Arg<'_>) -> Result<()> {
        if let Arg::Tensor(tensor) = argument {
            std::mem::forget(tensor.storage().enter()?);
        }
        self.entered += 1;
        Ok(())
    }
}

impl Drop for ArgumentsInUse<'_> {
    #[inline]
    fn drop(&mut self) {
        for argument in &self.arguments[..self.entered] {
            if let Arg::Tensor(tensor) = argument {
                tensor.storage().leave();
            }
        }
    }
}

impl Arg<'_> {
    /// The size of what the kernel gets.
    #[inline]
    fn bytes(&self) -> usize {
        match self {
            Arg::U32(_) | Arg::I32(_) | Arg::F32(_) => 4,
            Arg::Tensor(_) | Arg::U64(_) | Arg::I64(_) | Arg::F64(_) => 8,
            Arg::Bytes(bytes) => bytes.len(),
        }
    }

    /// Adds what the kernel gets to a launch that is listed.
    fn record(&self, launches: &mut LaunchRecorder<'_>) {
        match self {
            Arg::Tensor(tensor) => {
                launches.parameter(&tensor.address().to_ne_bytes());
                launches.keep_unless_own(tensor.storage().recording, || -> KeepAlive { tensor.storage().clone() });
            }
            Arg::U32(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::I32(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::U64(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::I64(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::F32(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::F64(value) => launches.parameter(&value.to_ne_bytes()),
            Arg::Bytes(bytes) => launches.parameter(bytes),
        }
    }
}

impl Tensor {
    /// If a segment is open, it keeps this tensor's memory for as long as it can be replayed; memory of the recording itself is the
    /// recording's anyway. For code that hands the address to a foreign library; the crate's own launches and copies do it.
    pub fn keep_in_segment(&self) {
        capture_state::keep_in_segment(self.storage().recording, || -> KeepAlive { self.storage().clone() });
    }

    /// Says that work on a stream uses this tensor, where the crate does not see it: a foreign library's. In a segment it is kept as
    /// [`keep_in_segment`](Tensor::keep_in_segment) does, from whatever thread; and on a side stream its memory does not serve another tensor before that
    /// stream has been joined. Elsewhere, memory that returns in the order of another stream returns after what is on this one by then.
    ///
    /// # Errors
    /// [`Misuse::ContextMismatch`], [`Misuse::OutsideTheCapture`], [`TensorError::Location`](crate::TensorError::Location) for a host tensor.
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Device, Event, Stream};
    /// # use breakable_cuda_graph::{CapturePool, DType, Driver, eager};
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
    /// let (side, fork) = (Stream::new(&context)?, Event::new(&context)?);
    /// eager(&pool, &stream, |scope| {
    ///     let scratch = scope.empty(DType::F32, &[64])?;
    ///     fork.record(&scope.stream()?)?;
    ///     side.wait(&fork)?;
    ///     // A library's call on `side` that uses the scratch, and then:
    ///     scratch.record_stream(&side)
    /// })?;
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    #[doc(alias = "recordStream")]
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        self.expect_on(stream.context(), "tensor")?;
        self.storage().expect_usable()?;
        let to = operation::admit(stream.context(), stream.as_raw(), "work on a tensor")?;
        self.used_by(&to, stream)?;
        if let Destination::Capture(capture) = &to {
            capture.used_on(stream.as_raw(), self.storage().clone());
        }
        Ok(())
    }

    /// An operation that goes there uses the tensor, on this stream.
    ///
    /// # Errors
    /// What the driver returns.
    #[inline]
    pub(crate) fn used_by(&self, to: &Destination, stream: &Stream) -> Result<()> {
        let storage = self.storage();
        if let Destination::Device = to {
            return storage.used_on(stream);
        }
        to.keep_unless_own(storage.recording, || -> KeepAlive { storage.clone() });
        Ok(())
    }

    /// An operation of the crate's that is about to be enqueued on the stream uses the tensor.
    ///
    /// # Errors
    /// [`Misuse::OutsideTheCapture`].
    pub(crate) fn used_in(&self, stream: &Stream, what: &'static str) -> Result<()> {
        let storage = self.storage();
        storage.expect_usable()?;
        if !capture_state::keep_if_listed(stream.as_raw(), storage.recording, || -> KeepAlive { storage.clone() }) {
            self.used_by(&operation::admit(stream.context(), stream.as_raw(), what)?, stream)?;
        }
        Ok(())
    }
}
