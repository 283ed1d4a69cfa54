//! What the integration tests share.
#![allow(dead_code)]

pub mod clusters;
#[path = "../../examples/demo/mod.rs"]
pub mod demo;
#[cfg(target_os = "linux")]
pub mod fake_driver;
mod ledger;
mod rig;

use breakable_cuda_graph::Driver;
#[allow(unused_imports)]
pub use ledger::Ledger;
#[allow(unused_imports)]
pub use rig::{Rig, assert_close, assert_same, random_values};

/// The driver under test: libcuda with the feature `driver-tests`, where anything that keeps it from working fails the test; the reference
/// driver otherwise.
#[cfg(feature = "driver-tests")]
pub fn driver() -> Driver {
    Driver::load().unwrap_or_else(|error| panic!("the feature driver-tests needs a usable device: {error}"))
}

/// The driver under test: libcuda with the feature `driver-tests`, the reference driver otherwise.
#[cfg(not(feature = "driver-tests"))]
pub fn driver() -> Driver {
    reference(1)
}

/// A reference driver with this seed for its order of interleaving.
pub fn reference(seed: u64) -> Driver {
    Driver::reference_with(demo::options().seed(seed)).expect("the reference driver loads")
}

/// The orders of interleaving that are tried on the reference driver.
pub const SEEDS: u64 = 64;

/// Runs a test body for each of [`SEEDS`] orders of interleaving on the reference driver; once with `driver-tests`.
pub fn for_each_seed(body: impl Fn(Rig)) {
    for_each_driver(|driver| body(Rig::new(driver)));
}

/// As [`for_each_seed`], with the driver alone.
pub fn for_each_driver(body: impl Fn(&Driver)) {
    if cfg!(feature = "driver-tests") {
        return body(&driver());
    }
    for seed in 0..SEEDS {
        let run = std::panic::AssertUnwindSafe(|| body(&reference(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("with interleaving seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Bytes of this process that are in memory, where the system tells.
pub fn resident() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}
