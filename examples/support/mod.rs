//! What the examples share.

#[path = "../demo/mod.rs"]
pub mod demo;

use breakable_cuda_graph::Driver;
use breakable_cuda_graph::driver::{Context, Device};
use breakable_cuda_graph::sys::LoadError;

/// Which driver to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Choice {
    /// libcuda where it loads and sees a device, the reference driver otherwise.
    #[default]
    Auto,
    /// libcuda, or an error.
    Libcuda,
    /// The reference driver.
    Reference,
}

/// The driver, and the line that says which it is and why.
pub fn driver(choice: Choice) -> Result<(Driver, String), Box<dyn std::error::Error>> {
    let why = match choice {
        Choice::Reference => "as asked for".to_owned(),
        Choice::Auto | Choice::Libcuda => match Driver::load() {
            Ok(driver) => {
                let name = Device::get(&driver, 0)?.name()?;
                let line = format!("driver: {} (CUDA {}), device {name}", driver.origin(), version(&driver));
                return Ok((driver, line));
            }
            Err(error) if choice == Choice::Libcuda => return Err(error.into()),
            Err(LoadError::NoLibrary { .. }) => "as there is no CUDA driver on this machine".to_owned(),
            Err(error) => format!("as the CUDA driver can't be used: {error}"),
        },
    };
    let driver = demo::driver()?;
    let line = format!("driver: {}, {why}", driver.origin());
    Ok((driver, line))
}

/// A device's context.
pub fn context(driver: &Driver, device: usize) -> breakable_cuda_graph::Result<Context> {
    Device::get(driver, device)?.primary_context()
}

fn version(driver: &Driver) -> String {
    format!("{}.{}", driver.version() / 1000, driver.version() % 1000 / 10)
}
