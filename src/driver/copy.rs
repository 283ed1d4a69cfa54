//! Copies and memsets in a stream's order, as methods of [`Stream`].

use super::buffer::PinnedBuffer;
use super::capture_state::{self, NodeKind};
use super::keep_alive::KeepAlive;
use super::operation;
use super::stream::Stream;
use crate::error::{Misuse, Result, TensorError};
use crate::sys::CUdeviceptr;
use core::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

impl Stream {
    /// Copies host bytes to the device and waits until the stream has done it
    /// ([`cuMemcpyHtoDAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), never the legacy stream). So later work on
    /// any stream sees them, and the slice may be reused.
    ///
    /// # Errors
    /// [`Misuse::HostMemoryInSegment`] while a segment is open: a recorded copy would keep the slice's address. Use
    /// [`copy_pinned_to_device`](Stream::copy_pinned_to_device) there. And what the driver returns.
    ///
    /// # Safety
    /// `to` is the start of at least `from.len()` bytes of device memory of the stream's context.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub unsafe fn copy_host_to_device(&self, to: CUdeviceptr, from: &[u8]) -> Result<()> {
        if capture_state::is_open() {
            return Err(Misuse::HostMemoryInSegment.into());
        }
        if from.is_empty() {
            return Ok(());
        }
        let _bound = self.context().bind()?;
        let driver = self.context().driver();
        // SAFETY: the caller vouches for the device memory; the slice lives until the wait below.
        let enqueued = unsafe { driver.cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.as_raw()) };
        enqueued?;
        self.settle()
    }

    /// Copies device bytes to the host and waits for them
    /// ([`cuMemcpyDtoHAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    ///
    /// # Errors
    /// [`Misuse::HostMemoryInSegment`] while a segment is open, and what the driver returns.
    ///
    /// # Safety
    /// `from` is the start of at least `to.len()` bytes of device memory of the stream's context.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub unsafe fn copy_device_to_host(&self, to: &mut [u8], from: CUdeviceptr) -> Result<()> {
        if capture_state::is_open() {
            return Err(Misuse::HostMemoryInSegment.into());
        }
        if to.is_empty() {
            return Ok(());
        }
        let _bound = self.context().bind()?;
        let driver = self.context().driver();
        // SAFETY: the caller vouches for the device memory; the slice lives until the wait below.
        let enqueued = unsafe { driver.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.as_raw()) };
        enqueued?;
        self.settle()
    }

    /// Copies part of a pinned buffer to the device, in the stream's order and without waiting. In a segment the copy is recorded with the host
    /// address, the buffer is kept by the segment, and each replay reads what the buffer then holds.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`], and what the driver returns.
    ///
    /// # Safety
    /// `to` is the start of at least as many bytes of device memory as the range is long. Outside a segment the buffer must not be dropped or
    /// written before the stream has run the copy.
    pub unsafe fn copy_pinned_to_device(
        &self,
        to: CUdeviceptr,
        from: &Arc<PinnedBuffer>,
        range: Range<usize>,
    ) -> Result<()> {
        if range.start > range.end || range.end > from.bytes() {
            return Err(TensorError::OutOfRange { what: "pinned buffer", end: range.end, length: from.bytes() }.into());
        }
        if range.is_empty() {
            return Ok(());
        }
        let _bound = self.context().bind()?;
        let start = from.address().cast::<u8>().wrapping_add(range.start);
        let place = operation::admit(self.context(), self.as_raw(), "a copy from pinned memory")?;
        place.keep(|| -> KeepAlive { from.clone() });
        // SAFETY: the range is inside the buffer; the caller vouches for the rest.
        unsafe {
            let source = start.cast::<c_void>();
            self.context().driver().cuMemcpyHtoDAsync_v2(to, source, range.len(), self.as_raw())?;
        }
        place.done(self.as_raw(), NodeKind::Copy);
        Ok(())
    }

    /// Copies device bytes in the stream's order
    /// ([`cuMemcpyDtoDAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)). In a segment the copy is recorded.
    ///
    /// # Errors
    /// What the driver returns.
    ///
    /// # Safety
    /// Both addresses are the start of at least `bytes` bytes of device memory of the stream's context, valid whenever the copy runs; the
    /// ranges don't overlap.
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub unsafe fn copy_device_to_device(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let place = operation::admit(self.context(), self.as_raw(), "a copy")?;
        // SAFETY: the caller vouches for the memory.
        unsafe { self.context().driver().cuMemcpyDtoDAsync_v2(to, from, bytes, self.as_raw())? };
        place.done(self.as_raw(), NodeKind::Copy);
        Ok(())
    }

    /// Fills device bytes with one value, in the stream's order
    /// ([`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)). In a segment it is recorded.
    ///
    /// # Errors
    /// What the driver returns.
    ///
    /// # Safety
    /// `address` is the start of at least `bytes` bytes of device memory of the stream's context, valid whenever the memset runs.
    #[doc(alias = "cuMemsetD8Async")]
    pub unsafe fn fill_bytes(&self, address: CUdeviceptr, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let place = operation::admit(self.context(), self.as_raw(), "a memset")?;
        // SAFETY: the caller vouches for the memory.
        unsafe { self.context().driver().cuMemsetD8Async(address, value, bytes, self.as_raw())? };
        place.done(self.as_raw(), NodeKind::Memset);
        Ok(())
    }
}
