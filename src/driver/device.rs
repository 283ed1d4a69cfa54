//! Devices.

use crate::error::{Error, Result};
use crate::sys::{CUdevice, CUdevice_attribute, CUuuid, Call, Driver, zeroed};
use core::ffi::c_char;
use std::ffi::CStr;
use std::fmt;

/// A device of a driver, by ordinal. Plain data: making one creates nothing on the device.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
    ordinal: usize,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.ordinal).field("driver", self.driver.origin()).finish()
    }
}

impl Device {
    /// How many devices the driver sees; zero is an answer and not an error
    /// ([`cuDeviceGetCount`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn count(driver: &Driver) -> Result<usize> {
        let mut count = 0;
        // SAFETY: `count` is a valid place.
        unsafe { driver.cuDeviceGetCount(&mut count)? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device with this ordinal ([`cuDeviceGet`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] with the number of devices, or what the driver returns.
    #[doc(alias = "cuDeviceGet")]
    pub fn get(driver: &Driver, ordinal: usize) -> Result<Device> {
        let count = Device::count(driver)?;
        let Some(number) = i32::try_from(ordinal).ok().filter(|_| ordinal < count) else {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            return Err(Error::NoSuchDevice { ordinal, count, visible });
        };
        let mut raw = 0;
        // SAFETY: `raw` is a valid place.
        unsafe { driver.cuDeviceGet(&mut raw, number)? };
        Ok(Device { driver: driver.clone(), raw, ordinal })
    }

    /// The device that a raw handle names.
    pub(crate) fn from_handle(driver: &Driver, raw: CUdevice) -> Device {
        Device { driver: driver.clone(), raw, ordinal: usize::try_from(raw).unwrap_or(0) }
    }

    /// The driver's handle.
    pub fn as_raw(&self) -> CUdevice {
        self.raw
    }

    /// The number given to [`get`](Device::get).
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its name, such as `NVIDIA H200` ([`cuDeviceGetName`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the buffer is as long as is said.
        unsafe { self.driver.cuDeviceGetName(text.as_mut_ptr(), text.len() as i32, self.raw)? };
        text[text.len() - 1] = 0;
        // SAFETY: the last byte is NUL, and the buffer lives through the call.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// An attribute ([`cuDeviceGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is a valid place.
        unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.raw)? };
        Ok(value)
    }

    /// Major and minor compute capability.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn compute_capability(&self) -> Result<(i32, i32)> {
        Ok((
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Whether the device has stream-ordered memory pools: neither the driver's version nor the compute capability tells.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn supports_memory_pools(&self) -> Result<bool> {
        Ok(self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0)
    }

    /// Bytes of memory in all ([`cuDeviceTotalMem`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place.
        unsafe { self.driver.cuDeviceTotalMem_v2(&mut bytes, self.raw)? };
        Ok(bytes)
    }

    /// The 16 bytes that name this device across processes
    /// ([`cuDeviceGetUuid`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid: CUuuid = zeroed();
        // SAFETY: `uuid` is a valid place.
        unsafe { self.driver.cuDeviceGetUuid_v2(&mut uuid, self.raw)? };
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Whether this device can read the other's memory
    /// ([`cuDeviceCanAccessPeer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        let mut can = 0;
        // SAFETY: `can` is a valid place.
        unsafe { self.driver.cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw)? };
        Ok(can != 0)
    }

    /// Whether the driver has an optional call.
    pub fn supports(&self, call: Call) -> bool {
        self.driver.supports(call)
    }
}
