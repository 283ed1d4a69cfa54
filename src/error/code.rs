//! The number of each error, for interfaces in other languages. A number is never given to another error.

use super::{Error, Misuse, TensorError};

impl Error {
    /// A number for this kind of error that never changes: 100 to 199 for drivers and devices, 200 to 299 for memory, 300 to 399 for recordings and
    /// replays, 400 to 499 for the prefill runner, 500 to 599 for [`Misuse`], 600 to 699 for [`TensorError`], 900 and up for the rest.
    ///
    /// ```
    /// use breakable_cuda_graph::{Error, Misuse};
    ///
    /// assert_eq!(Error::from(Misuse::NestedCapture).code(), 503); // In every version.
    /// ```
    pub fn code(&self) -> u32 {
        match self {
            Error::Load(_) => 100,
            Error::NoSuchDevice { .. } => 101,
            Error::PoolsUnsupported { .. } => 102,
            Error::Call(_) => 110,
            Error::Instantiate(_) => 111,
            Error::ModuleLoad(_) => 112,
            Error::Kernel(_) => 113,
            Error::OutOfMemory(_) => 200,
            Error::Plan(_) => 201,
            Error::DeviceOutOfMemory { .. } => 202,
            Error::Capture(_) => 300,
            Error::Break { .. } => 301,
            Error::NotPatchable { .. } => 302,
            Error::ScratchExceeded { .. } => 303,
            Error::Segment { .. } => 304,
            Error::Verify(_) => 305,
            Error::Prefill(_) => 400,
            Error::Misuse(misuse) => misuse.code(),
            Error::Tensor(tensor) => tensor.code(),
            Error::User(_) => 900,
            Error::Internal(_) => 999,
        }
    }
}

impl Misuse {
    /// A number for this kind of misuse that never changes, from 500 on.
    pub fn code(&self) -> u32 {
        match self {
            Misuse::ForkedAfterInit => 500,
            Misuse::BadName { .. } => 501,
            Misuse::ContextMismatch { .. } => 502,
            Misuse::NestedCapture => 503,
            Misuse::AlreadyRecorded => 504,
            Misuse::NotRecorded => 505,
            Misuse::Poisoned => 506,
            Misuse::ReplayWhileRecording => 507,
            Misuse::LegacyStream => 508,
            Misuse::BlockingStream => 509,
            Misuse::StreamIsCapturing { .. } => 510,
            Misuse::WouldInvalidate { .. } => 511,
            Misuse::SynchronizeWhileCapturing { .. } => 512,
            Misuse::HostMemoryInSegment => 513,
            Misuse::MustBeBreak { .. } => 514,
            Misuse::UnjoinedWork { .. } => 515,
            Misuse::MemoryNodes { .. } => 516,
            Misuse::EventFromSegment => 517,
            Misuse::EventFromOutside => 518,
            Misuse::NoForward => 519,
            Misuse::NoForwardContext { .. } => 520,
            Misuse::OutputCount { .. } => 521,
            Misuse::TooManyArguments { .. } => 522,
            Misuse::StaleReference => 523,
            Misuse::OutputsOverwritten => 524,
            Misuse::ForeignPool => 525,
            Misuse::PoolBusy => 526,
            Misuse::PoolInUse { .. } => 527,
            Misuse::PoolReleased => 528,
            Misuse::PoolLent => 529,
            Misuse::ReleaseUnsupported => 530,
            Misuse::AllocateInSegment => 531,
            Misuse::NoHostKernel { .. } => 532,
            Misuse::ArgumentCount { .. } => 533,
            Misuse::ArgumentSize { .. } => 534,
            Misuse::OutsideTheCapture { .. } => 540,
            Misuse::OperationNotRecorded { .. } => 541,
            Misuse::NothingRecorded => 542,
            Misuse::CaptureInProgress { .. } => 543,
            Misuse::ReplayInOthersCapture { .. } => 544,
            Misuse::UnjoinedInBreak { .. } => 550,
            Misuse::ReplayFailed => 555,
            Misuse::PoolsInterlocked => 556,
            Misuse::ScratchOutsideItsBreak => 557,
            Misuse::FrozenContext { .. } => 565,
            Misuse::FrozenRows { .. } => 566,
            Misuse::PoolPinned { .. } => 572,
            Misuse::VerifyRuns { .. } => 570,
            Misuse::VerifyOutputs { .. } => 571,
            Misuse::TimingInSegment => 580,
            Misuse::NotTheBucketsRows { .. } => 567,
            Misuse::OutputsMiscounted { .. } => 568,
            Misuse::OutsideTheBreak { .. } => 590,
            Misuse::AbsentInput { .. } => 591,
        }
    }
}

impl TensorError {
    /// A number for this kind of error that never changes, from 600 on.
    pub fn code(&self) -> u32 {
        match self {
            TensorError::Shape { .. } => 600,
            TensorError::DType { .. } => 601,
            TensorError::Layout { .. } => 602,
            TensorError::Overlap => 603,
            TensorError::OutOfRange { .. } => 604,
            TensorError::Location { .. } => 605,
            TensorError::TooManyRows { .. } => 606,
            TensorError::UnfitTail { .. } => 607,
            TensorError::SharedElements { .. } => 610,
            TensorError::Misaligned { .. } => 611,
            TensorError::HostMemory { .. } => 612,
        }
    }
}
