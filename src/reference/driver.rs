//! The reference driver as a [`Driver`].

use super::options::Options;
use super::ref_driver::RefDriver;
use crate::sys::{self, Driver, LoadError};
use std::any::Any;

impl Driver {
    /// The reference driver: one device, default options. See [`reference`](crate::reference).
    ///
    /// # Errors
    /// None with the default options; the type is that of [`load`](Driver::load).
    pub fn reference() -> Result<Driver, LoadError> {
        Driver::reference_with(Options::default())
    }

    /// A reference driver of its own with these options: it shares nothing with any other.
    ///
    /// # Errors
    /// As a library would: [`LoadError`] where the options ask for an old version, a missing call or no device.
    pub fn reference_with(options: Options) -> Result<Driver, LoadError> {
        sys::of_backend(RefDriver::new(options), "reference driver")
    }

    /// The reference driver behind this driver, for its counters and options; `None` for libcuda.
    pub fn ref_driver(&self) -> Option<&RefDriver> {
        let backend: &dyn Any = &**self.backend()?;
        backend.downcast_ref()
    }
}
