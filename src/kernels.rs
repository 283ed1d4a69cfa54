#![allow(missing_docs)]
use std::ffi::CStr;
pub const PTX: &CStr = c"";
pub const SCRUB: &CStr = c"a";
pub const LAND: &CStr = c"b";
pub const SCRUB_TENSORS: usize = 16;
pub struct Geometry {
    pub grid: [u32; 3],
    pub block: [u32; 3],
}
pub struct ScrubLaunch {
    pub parameters: [u64; 4],
    pub geometry: Geometry,
}
pub struct LandLaunch {
    pub parameters: [u64; 4],
    pub geometry: Geometry,
}
pub struct TensorDesc<'a> {
    pub address: u64,
    pub element_size: u32,
    pub shape: &'a [usize],
    pub strides: &'a [usize],
}
pub struct ScrubBatch {
    pub rows: usize,
}
impl ScrubBatch {
    pub fn new(rows: usize) -> Self {
        ScrubBatch { rows }
    }
    pub fn add(&mut self, _d: &TensorDesc<'_>) -> bool {
        true
    }
    pub fn launch(&self) -> Option<ScrubLaunch> {
        None
    }
}
pub fn landing(_from: &TensorDesc<'_>, _to: &TensorDesc<'_>, _valid: usize, _until: usize) -> Option<LandLaunch> {
    None
}
